"""The return of a tag from direct mode to Redis."""

from __future__ import annotations

from issuer.core.events import Failed, Rejoined
from issuer.core.floor import floor
from issuer.core.steps import SingleFlight, Steps
from issuer.core.supply.fetcher import Shortage
from issuer.core.supply.lease import Lease
from issuer.core.supply.mode import Mode, Origin
from issuer.core.supply.runtime import Runtime
from issuer.core.supply.state import TagState
from issuer.errors import IssuerError, RedisUnavailable
from issuer_persistence.ledger import Reservation


def rejoin(state: TagState, runtime: Runtime, origin: Origin, flights: SingleFlight, shortage: Shortage) -> Steps[None]:
    """If Redis is back, make it skip the numbers of direct mode, draw from it again, and return unused numbers.

    Args:
        state: What this process knows of the tag.
        runtime: Services and settings that all tags of the issuer share.
        origin: Mode of the tag. In any other mode than direct mode, nothing is done.
        flights: The fetches of the tag's segments. While this runs, no segment is fetched.
        shortage: Reports that Redis is back.
    """
    buffer = state.buffer
    if origin.mode is not Mode.DIRECT or not runtime.redis or buffer is None:
        return
    flight, leads = flights.join()
    mine = leads and flight.start()
    if not mine and buffer.held:
        return
    # If `mine` is False, another caller is fetching a segment, and the buffer is empty. If the segment arrives after
    # the return to Redis, that caller gives it back to the store. So continue without waiting for it.
    left: tuple[tuple[Lease | Reservation, ...], int] = (), 0
    refusal: IssuerError | None = None
    rejoined = False
    try:
        store_id = yield from origin.identity()
        # Before the buffer is emptied, make sure that Redis accepts a write. A Redis that is out of memory or has
        # too few replicas still answers reads.
        yield from origin.public(floor(state.tag, state.key, buffer.issued, "keep", store_id))
        left = buffer.empty()
        issued = buffer.issued
        yield from origin.public(floor(state.tag, state.key, issued, "keep", store_id))
        with origin.lock.thread, origin.lock.call():
            current = flights.is_current(flight) or not mine
            if current and not buffer.held and buffer.issued == issued:
                origin.leave_direct()
                rejoined = True
        if rejoined:
            if shortage.redis_trouble:
                shortage.redis_back()
            runtime.emit(Rejoined(state.tag, issued))
    except RedisUnavailable as error:
        runtime.emit(Failed(state.tag, "rejoin", error))
    except IssuerError as error:  # the hash is corrupt, or belongs to another store, or the store is down
        refusal = error
    finally:
        if mine or origin.mode is not Mode.DIRECT:
            flights.finish(flight, progress=True)
    # Return the unused numbers last: callers draw from Redis by now, and must not wait for a store that may be down.
    yield from origin.give_back(*left)
    if refusal is not None:
        raise refusal
