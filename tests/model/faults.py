"""What befalls the servers and the store, what is on its way, and what operators do.

Faults by name, as `World.faults` counts them: "lost" replies, "copy" of a message, "crash", "fork", "cut" (a process
doesn't reach Redis), "snapshot", "rollback" to it, "promote", "flush", "backup", "restore", "recover", "delete".
"""

from collections.abc import Iterator

from tests.model import scripts, store
from tests.model.guards import INTACT
from tests.model.processes import name
from tests.model.scripts import Node
from tests.model.state import (
    FRESH,
    STORE,
    Duty,
    Message,
    State,
    Step,
    World,
    fresh_born,
    fresh_reign,
    fresh_version,
    put_hash,
    put_node,
)

Steps = Iterator[Step]


def steps(world: World, state: State) -> Steps:
    """All that may happen now without a process's doing."""
    yield from _arrivals(world, state)
    yield from _time_goes_back(world, state)
    yield from _promotions(world, state)
    yield from _store_goes_back(world, state)
    yield from _recovery(world, state)
    yield from _deletion(world, state)


# ------------------------------------------------------------------------------------------------ the network


def _arrivals(world: World, state: State) -> Steps:
    """What is on its way arrives late, anywhere, or never; some of it twice."""
    once = {"load": world.guards.load_once, "giveback": world.guards.give_once, "handback": False}
    for at, message in enumerate(state.net):
        if message in state.net[:at]:
            continue
        rest = state._replace(net=(*state.net[:at], *state.net[at + 1 :]))
        for label, after, harm in arrival(world, rest, message):
            yield label, after, harm
            if not once[message.kind] and world.may("copy", state):
                again = world.spent("copy", after)._replace(net=state.net)
                yield f"{label}; a copy is still on its way", again, harm


def arrival(world: World, state: State, message: Message) -> Steps:
    """The message arrives, at any server."""
    kind, low, high, reign, born, _ = message
    if kind == "handback":
        yield _handed_back(world, state, message)
        return
    for where, node in enumerate(state.nodes):
        if kind == "load":
            reply, hash = scripts.load(node, world.guards, low, high, reign=reign, born=born)
        else:
            reply, hash = scripts.give_back(node, world.guards, low, high, reign=reign, born=born)
        after = put_hash(state, where, hash)
        harm = ""
        if reply[0] in ("notmaster", "stale", "full", "spent"):
            after = _refused(world, after)
        elif hash and hash.fence != node.reign:
            harm = f"DEAD: {kind} was taken by a hash that nobody can draw from"
        elif kind == "load" and node.hash and node.hash.next_max != scripts.NONE:
            harm = "PUSHED OUT: buffer 2 held numbers"
        yield f"{kind} of ({low}, {high}] arrives at {name(where)}: {' '.join(map(str, reply))}", after, harm


def forgotten(world: World, state: State) -> State:
    """Return the state without the messages that will be refused whenever they arrive.

    Reigns, borns and versions are fresh, so what has another one has it for good; and the top of one born never sinks.
    Only with all guards in place, and where refusals aren't counted.
    """
    if world.gap or not state.net or world.guards is not INTACT:
        return state
    kept = tuple(message for message in state.net if _welcome(state, message))
    return state if len(kept) == len(state.net) else state._replace(net=kept)


def _welcome(state: State, message: Message) -> bool:
    if message.kind == "handback":
        return message.version == state.store.version
    for node in state.nodes:
        hash = node.hash
        if node.master and hash and hash.fence == node.reign == message.reign and hash.born == message.born:
            return message.kind == "giveback" or message.low >= hash.top
    return False


def _handed_back(world: World, state: State, message: Message) -> Step:
    _, low, high, _, _, seen = message
    done, after = store.hand_back(state.store, world.guards, low, high, seen=seen, version=fresh_version(state))
    if not done:
        return f"hand back of ({low}, {high}] arrives: refused", _refused(world, state), ""
    return f"hand back of ({low}, {high}] arrives: done", state._replace(store=after), ""


def _refused(world: World, state: State) -> State:
    return state._replace(refusals=state.refusals + 1) if world.gap else state


# ------------------------------------------------------------------------------------------------ Redis


def _time_goes_back(world: World, state: State) -> Steps:
    first = state.nodes[0]
    if first.hash and world.may("snapshot", state):
        yield "snapshot of A", world.spent("snapshot", state._replace(snapshot=(first.hash,))), ""
    old = state.snapshot[0] if state.snapshot else None
    if first.master and old != first.hash and world.may("rollback", state):
        # A dump carries the replid of its time, which may become master_replid2.
        after = put_node(state, 0, Node(True, fresh_reign(state), first.reign, old, state.highest))
        yield "A starts again from its snapshot", world.spent("rollback", _followed(after, 0)), ""
    if world.may("flush", state) and (state.store.halted or not world.after_halt):
        for where, node in enumerate(state.nodes):
            if node.master and node.hash:
                yield f"{name(where)} loses its keys", world.spent("flush", put_hash(state, where, None)), ""


def _followed(state: State, master: int) -> State:
    """Replicas take over their master's reign; the numbers come later."""
    reign = state.nodes[master].reign
    followed = tuple(node if node.master else node._replace(reign=reign) for node in state.nodes)
    return state._replace(nodes=followed)


def _promotions(world: World, state: State) -> Steps:
    for where, node in enumerate(state.nodes):
        if node.master:
            continue
        # One server is always a master: with two of them, the other.
        master = 1 - where
        if world.may("promote", state):
            made = Node(True, fresh_reign(state), node.reign, node.hash, state.highest)
            after = world.spent("promote", put_node(state, where, made))
            yield f"{name(where)} is promoted, {name(master)} is still alive", after, ""
            yield f"{name(where)} is promoted, {name(master)} follows it", _demoted(after, master, where), ""
        if node.hash != state.nodes[master].hash:
            yield f"{name(where)} catches up", put_node(state, where, node._replace(hash=state.nodes[master].hash)), ""
    if all(node.master for node in state.nodes[:2]) and len(state.nodes) > 1:
        for where in (0, 1):
            yield f"{name(where)} becomes a replica of {name(1 - where)}", _demoted(state, where, 1 - where), ""


def _demoted(state: State, where: int, master: int) -> State:
    of = state.nodes[master]
    return put_node(state, where, Node(False, of.reign, of.older, of.hash, state.nodes[where].last))


# ------------------------------------------------------------------------------------------------ the store


def _store_goes_back(world: World, state: State) -> Steps:
    if world.may("backup", state):
        yield (
            f"backup of the store, at {state.store.max}",
            world.spent("backup", state._replace(backup=(state.store,))),
            "",
        )
    if state.backup and state.backup[0].max < state.store.max and world.may("restore", state):
        # With the issuers stopped: nothing of theirs is on its way any more.
        after = state._replace(store=state.backup[0], restored=True)
        if not world.running:
            after = after._replace(processes=(FRESH,) * len(state.processes), net=())
        yield f"the store is restored to {after.store.max}", world.spent("restore", after), ""


def _recovery(world: World, state: State) -> Steps:
    if world.may("recover", state) and (state.restored or "restore" not in world.faults or not world.cautious):
        told = state.journal if world.guards.told else 0
        for where, node in enumerate(state.nodes):
            if node.master:
                at = max(state.store.max, told, node.hash.top if node.hash else 0)
                begun = world.spent("recover", state._replace(duties=(*state.duties, Duty("read", at))))
                yield f"recover reads store and {name(where)}: {at}", begun, ""
    for duty in set(state.duties):
        rest = list(state.duties)
        rest.remove(duty)
        after = state._replace(duties=tuple(rest))
        if duty.done == "read":
            raised = store.recover(state.store, duty.at, fresh_version(state))
            after = after._replace(store=raised, duties=tuple(sorted((*rest, Duty("raised", raised.max)))))
            yield f"recover raises the store to {raised.max}", after, ""
            continue
        for where, node in enumerate(state.nodes):
            reply, hash = scripts.floor(node, world.guards, duty.at, fresh_born(state), STORE)
            if reply[0] == "floored":
                floored = put_hash(after, where, hash)
                if duty.done == "raised":
                    floored = floored._replace(retired=max(state.retired, duty.at), restored=False)
                yield f"{duty.done}: {name(where)} is floored at {duty.at}", floored, ""


def _deletion(world: World, state: State) -> Steps:
    if world.may("delete", state) and not state.store.deleted:
        buried = store.bury(state.store, fresh_version(state))
        after = state._replace(store=buried, duties=(*state.duties, Duty("delete", buried.max)))
        yield "the tag is deleted", world.spent("delete", after), ""
    if state.store.deleted:
        made = store.make_again(state.store, world.guards, fresh_version(state))
        yield f"the tag is made again, at {made.max}", state._replace(store=made), ""
