"""What operators do, in steps that anything may come between; what they began may also never be ended.

By name, as `World.faults` counts them: "recover", "change" of the scheme, another "limit", "delete" (and make again).
"""

from collections.abc import Iterator

from tests.proofs.model import scripts, store
from tests.proofs.model.processes import name
from tests.proofs.model.scripts import NEVER
from tests.proofs.model.state import STORE, Duty, State, Step, World, fresh_born, fresh_version, put_hash
from tests.proofs.model.store import Store

Steps = Iterator[Step]

KINDS = frozenset(("recover", "change", "limit", "delete"))


def steps(world: World, state: State) -> Steps:
    """All that operators may do now."""
    if not state.duties and not state.store.deleted and KINDS.isdisjoint(world.faults):
        return
    yield from _recovery(world, state)
    yield from _changes(world, state)
    yield from _limits(world, state)
    yield from _deletion(world, state)
    yield from _floors(world, state)


def _begun(state: State, duty: Duty) -> State:
    return state._replace(duties=tuple(sorted((*state.duties, duty))))


def _at_hand(state: State, *kinds: str) -> Iterator[tuple[Duty, State]]:
    """Yield what was begun of these kinds, and the state without it."""
    for duty in set(state.duties):
        if duty.done in kinds:
            rest = list(state.duties)
            rest.remove(duty)
            yield duty, state._replace(duties=tuple(rest))


def _recovery(world: World, state: State) -> Steps:
    if world.may("recover", state) and (state.restored or "restore" not in world.faults or not world.cautious):
        told = state.journal if world.guards.told else 0
        for where, node in enumerate(state.nodes):
            if node.master:
                at = max(state.store.max, told, node.hash.top if node.hash else 0)
                begun = world.spent("recover", _begun(state, Duty("read", at)))
                yield f"recover reads store and {name(where)}: {at}", begun, ""
    for duty, rest in _at_hand(state, "read"):
        raised = store.recover(state.store, duty.at, fresh_version(state))
        after = _begun(rest._replace(store=raised), Duty("raised", raised.max))
        yield f"recover raises the store to {raised.max}", after, ""


def _changes(world: World, state: State) -> Steps:
    """Another scheme: the record is read, and changed if it is still the same; then the hash is floored."""
    now = state.store
    if now.deleted:
        return
    reading = Duty("seen", now.max, now.scheme, now.version)
    # After a restore the operator has to say from which number on: above all that the lost scheme has shown.
    if world.may("change", state) and ("restore" not in world.faults or world.may("restore", state)):
        label = f"the scheme shall be changed from {now.max} on"
        yield label, world.spent("change", _begun(state, reading)), ""
    for duty, rest in _at_hand(state, "seen"):
        seen = Store(max=duty.at, version=duty.version, scheme=duty.scheme)
        done, changed = store.change_scheme(now, world.guards, seen, fresh_version(state))
        if done:
            after = _begun(rest._replace(store=changed), Duty("changed", scheme=changed.scheme))
            yield f"the scheme is changed to {changed.scheme}", after, ""
        else:
            yield f"the record is another one by now: from {now.max} on", _begun(rest, reading), ""


def _limits(world: World, state: State) -> Steps:
    """Another limit: just below what is reserved, at that, or just above."""
    if world.may("limit", state):
        for limit in range(max(1, state.store.max - 1), state.store.max + 2):
            done, after = store.set_limit(state.store, world.guards, limit, fresh_version(state))
            if done and limit != state.store.limit:
                yield f"the limit is set to {limit}", world.spent("limit", state._replace(store=after)), ""


def _deletion(world: World, state: State) -> Steps:
    if world.may("delete", state) and not state.store.deleted:
        buried = store.bury(state.store, fresh_version(state))
        after = _begun(state._replace(store=buried), Duty("delete", buried.max))
        yield "the tag is deleted", world.spent("delete", after), ""
    if state.store.deleted:
        made = store.make_again(state.store, world.guards, fresh_version(state))
        yield f"the tag is made again, at {made.max}", state._replace(store=made), ""


def _floors(world: World, state: State) -> Steps:
    """What each of them ends with."""
    for duty, rest in _at_hand(state, "raised", "delete", "changed"):
        for where, node in enumerate(state.nodes):
            scheme, born = duty.scheme, fresh_born(state)
            reply, hash = scripts.floor(node, world.guards, duty.at, born, STORE, scheme=scheme, until=NEVER)
            if reply[0] != "floored":
                continue
            after = put_hash(rest, where, hash)
            if duty.done == "raised":
                after = after._replace(retired=max(state.retired, duty.at), restored=False)
            yield f"{duty.done}: {name(where)} is floored at {duty.at}", after, ""
