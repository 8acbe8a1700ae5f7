"""Draws a number for a key of the caller, such as the id of a request. For threads and asyncio tasks."""

from __future__ import annotations

from issuer.clock import Deadline, pause
from issuer.core.error_mapping import refused
from issuer.core.scheme_record import turn
from issuer.core.steps import Steps, send, sleep
from issuer.core.supply.mode import Mode
from issuer.core.supply.supply import Supply
from issuer.errors import ConfigurationError, IssuerError, RedisUnavailable, StoreBehind
from issuer.gateway import tag_scripts


def once(
    supply: Supply, kept: str, ttl: float, deadline: Deadline, over: IssuerError | None = None
) -> Steps[tuple[int, bool]]:
    """Draw one number for a key of the caller. The same key gets the same number for `ttl` seconds.

    Returns the number, and True if the key had it before this call. `kept`: the Redis key that stores the number.
    `over`: error that is raised in place of a draw if the key has no number yet.
    Even if the tag has leases, the number is drawn from Redis: all processes must see which keys have a number.
    """
    attempt, state = 0, supply.state
    if not supply.runtime.redis:
        problem = f"tag {state.tag!r}: the number of a key is stored in Redis, but no Redis is configured"
        raise ConfigurationError(f"{problem}: configure Redis, or omit the key", tag=state.tag)
    if over is not None and not (yield from send(tag_scripts.is_kept(kept))):
        raise over
    supply.used()
    supply.shortage.waiting.add(deadline)
    try:
        while True:
            state.refuse_if_ended()
            try:
                drawn = yield from _once(supply, kept, ttl, deadline)
            except RedisUnavailable as error:
                if deadline.left() <= 0:
                    raise RedisUnavailable(str(error), tag=state.tag, retry_after=error.retry_after) from error
            else:
                if drawn is not None:
                    supply.shortage.supplied()
                    return drawn
                if supply.origin.mode is not Mode.DIRECT:
                    continue
            # Redis is down. Or Redis is back, but has no segment until this process has ended direct mode.
            yield from sleep(min(pause(attempt), deadline.left()))
            attempt += 1
    finally:
        supply.shortage.waiting.discard(deadline)


def _once(supply: Supply, kept: str, ttl: float, deadline: Deadline) -> Steps[tuple[int, bool] | None]:
    """Send one draw of `once`, with the same arguments and result. None if the caller must try again."""
    state = supply.state
    yield from supply.origin.refuse_foreign(probe=True)
    drawn_as, before = state.scheme_id, state.seen
    seen = before if state.strict else 0
    window, claimant = supply.refill.window, supply.refill.claimant
    call = tag_scripts.once(state.key, kept, window, scheme=drawn_as, ttl=ttl, seen=seen, claimant=claimant)
    drawn = yield from send(call)
    if turn(drawn.scheme) > turn(state.scheme_id):
        # Another process drew this counter value with a later scheme. This process's scheme gives another number.
        record = yield from supply.origin.read()
        if turn(drawn.scheme) > turn(state.scheme_id):
            raise StoreBehind(state.tag, max=record.max, scheme=drawn.scheme)
    if drawn.status == "older" and state.went_back(drawn.number, before):
        yield from supply.origin.refuse_backwards(drawn.number, before)
    if drawn.status in ("again", "ok"):
        state.seen = max(state.seen, drawn.number)
        state.drew(int(drawn.status == "ok"))
        if drawn.extend:
            supply.refill.elected()
        return drawn.number, drawn.status == "again"
    if drawn.status in ("notmaster", "corrupt"):
        raise refused(drawn, state.tag, state.key)
    if drawn.status == "scheme":
        yield from supply.origin.read()
        if state.scheme_id != drawn_as:
            return None
    if supply.origin.mode is Mode.DIRECT:
        yield from supply.rejoin()
    yield from supply.refill.segments.wait_for(deadline)
    return None
