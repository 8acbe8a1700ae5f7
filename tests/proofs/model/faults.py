"""What befalls the servers and the store, and what is on its way.

Faults by name, as `World.faults` counts them: "lost" replies, "copy" of a message, "crash", "fork", "cut" (a process
doesn't reach Redis), "half" (a script ends half done), "snapshot", "rollback" to it, "restart" with all that was
there, "promote", "takeover" (in a Cluster), "flush", "forget" (what was kept for a key), "tick" (a server's clock shows
the next period), "back" (the one before), "backup", "restore"; and what operators do: see operators.py.
"""

from collections.abc import Iterator

from tests.proofs.model import scripts, store
from tests.proofs.model.guards import INTACT
from tests.proofs.model.processes import name
from tests.proofs.model.scripts import Node
from tests.proofs.model.state import (
    FRESH,
    Message,
    State,
    Step,
    World,
    backs_renamed,
    fresh_backs,
    fresh_reign,
    fresh_version,
    put_hash,
    put_node,
)

Steps = Iterator[Step]


def steps(world: World, state: State) -> Steps:
    """All that may happen now without a process's doing."""
    yield from _arrivals(world, state)
    yield from _half_done(world, state)
    yield from _time_goes_back(world, state)
    yield from _promotions(world, state)
    yield from _clocks(world, state)
    yield from _store_goes_back(world, state)


# ------------------------------------------------------------------------------------------------ the network


def _arrivals(world: World, state: State) -> Steps:
    """What is on its way arrives late, anywhere, or never; some of it twice."""
    once = {"load": world.guards.load_once, "giveback": False, "handback": False}
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
    kind, low, high, reign, born, _, backs = message
    if kind == "handback":
        yield _handed_back(world, state, message)
        return
    for where, node in enumerate(state.nodes):
        if kind == "load":
            reply, hash = scripts.load(node, world.guards, low, high, reign=reign, born=born)
        else:
            seen = {"reign": reign, "born": born, "backs": backs}
            reply, hash = scripts.give_back(node, world.guards, low, high, after=fresh_backs(state, backs), **seen)
        after = put_hash(state, where, hash)
        harm = ""
        if reply[0] in ("notmaster", "stale", "full", "spent"):
            after = _refused(world, after)
        elif hash and (hash.fence, hash.node) != (node.reign, node.id):
            harm = f"DEAD: {kind} was taken by a hash that nobody can draw from"
        elif kind == "load" and node.hash and node.hash.next_max != scripts.NONE:
            harm = "PUSHED OUT: buffer 2 held numbers"
        yield f"{kind} of ({low}, {high}] arrives at {name(where)}: {' '.join(map(str, reply))}", after, harm


def forgotten(world: World, state: State) -> State:
    """Return the state without the messages that will be refused whenever they arrive.

    Reigns, borns, versions and backs are fresh, so what has another one has it for good; and the top of one born never
    sinks but by a script that ends half done. Only with all guards in place, and where refusals aren't counted.
    """
    if world.lease:
        state = backs_renamed(state)
    if world.gap or not state.net or world.guards is not INTACT or "half" in world.faults:
        return state
    kept = tuple(message for message in state.net if _welcome(state, message))
    return state if len(kept) == len(state.net) else state._replace(net=kept)


def _welcome(state: State, message: Message) -> bool:
    if message.kind == "handback":
        return message.version == state.store.version
    for node in state.nodes:
        hash = node.hash
        if node.master and hash and hash.fence == node.reign == message.reign and hash.born == message.born:
            if message.kind == "load":
                return message.low >= hash.top
            return message.backs == hash.backs or (
                message.backs == hash.backs_before and message.high <= hash.backs_low
            )
    return False


def _handed_back(world: World, state: State, message: Message) -> Step:
    _, low, high, _, _, seen, _ = message
    done, after = store.hand_back(state.store, world.guards, low, high, seen=seen, version=fresh_version(state))
    if not done:
        return f"hand back of ({low}, {high}] arrives: refused", _refused(world, state), ""
    return f"hand back of ({low}, {high}] arrives: done", state._replace(store=after), ""


def _refused(world: World, state: State) -> State:
    return state._replace(refusals=state.refusals + 1) if world.gap else state


# ------------------------------------------------------------------------------------------------ Redis


def _half_done(world: World, state: State) -> Steps:
    """The server denies one of its commands, or stops."""
    for where, node in enumerate(state.nodes):
        if node.master and node.hash and world.may("half", state):
            for script, left in scripts.half_done(node.hash, world.guards):
                after = world.spent("half", put_hash(state, where, left))
                yield f"{script} ends half done on {name(where)}", after, ""


def _time_goes_back(world: World, state: State) -> Steps:
    for first in state.nodes[:1]:
        if first.hash and world.may("snapshot", state):
            dump = Node(master=True, reign=0, hash=first.hash, kept=first.kept)
            yield "snapshot of A", world.spent("snapshot", state._replace(snapshot=(dump,))), ""
        old = state.snapshot[0] if state.snapshot else Node(master=True, reign=0)
        if first.master and (old.hash, old.kept) != (first.hash, first.kept) and world.may("rollback", state):
            yield "A starts again from its snapshot", world.spent("rollback", _started(state, old)), ""
        if first.master and first.hash and world.may("restart", state):
            yield "A starts again with all that it had", world.spent("restart", _started(state, first)), ""
    for where, node in enumerate(state.nodes):
        if node.master and node.hash and world.may("flush", state) and (state.store.halted or not world.after_halt):
            lost = put_node(state, where, node._replace(hash=None, kept=()))
            yield f"{name(where)} loses its keys", world.spent("flush", lost), ""
        if node.master and node.kept and world.may("forget", state):
            lost = put_node(state, where, node._replace(kept=node.kept[1:]))
            yield f"{name(where)} forgets the number of key {node.kept[0][0]}", world.spent("forget", lost), ""


def _started(state: State, held: Node) -> State:
    """A holds that now. A dump carries the replid of its time, which may become master_replid2."""
    first = state.nodes[0]
    begun = Node(True, fresh_reign(state), first.reign, held.hash, state.highest, first.clock, held.kept)
    return _followed(put_node(state, 0, begun), 0)


def _clocks(world: World, state: State) -> Steps:
    for where, node in enumerate(state.nodes):
        for fault, clock in (("tick", node.clock + 1), ("back", node.clock - 1)):
            if world.may(fault, state):
                shown = world.spent(fault, put_node(state, where, node._replace(clock=clock)))
                yield f"it is {clock} by the clock of {name(where)}", shown, ""


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
            made = node._replace(master=True, reign=fresh_reign(state), older=node.reign, last=state.highest)
            after = world.spent("promote", put_node(state, where, made))
            yield f"{name(where)} is promoted, {name(master)} is still alive", after, ""
            yield f"{name(where)} is promoted, {name(master)} follows it", _demoted(after, master, where), ""
        if world.may("takeover", state):
            # A node of a Cluster that knew no address of its master when it started keeps its master's reign.
            after = world.spent("takeover", put_node(state, where, node._replace(master=True, last=state.highest)))
            yield f"{name(where)} takes over, {name(master)} is still alive", after, ""
            yield f"{name(where)} takes over, {name(master)} follows it", _demoted(after, master, where), ""
        ahead = state.nodes[master]
        if (node.hash, node.kept) != (ahead.hash, ahead.kept):
            caught_up = node._replace(hash=ahead.hash, kept=ahead.kept)
            yield f"{name(where)} catches up", put_node(state, where, caught_up), ""
    if all(node.master for node in state.nodes[:2]) and len(state.nodes) > 1:
        for where in (0, 1):
            yield f"{name(where)} becomes a replica of {name(1 - where)}", _demoted(state, where, 1 - where), ""


def _demoted(state: State, where: int, master: int) -> State:
    of = state.nodes[master]
    demoted = state.nodes[where]._replace(master=False, reign=of.reign, older=of.older, hash=of.hash, kept=of.kept)
    return put_node(state, where, demoted)


# ------------------------------------------------------------------------------------------------ the store


def _store_goes_back(world: World, state: State) -> Steps:
    if world.may("backup", state):
        yield (
            f"backup of the store, at {state.store.max}",
            world.spent("backup", state._replace(backup=(state.store,))),
            "",
        )
    if state.backup and state.backup[0].max < state.store.max and world.may("restore", state):
        # With the issuers stopped: nothing of theirs, and of operators, is on its way any more.
        after = state._replace(store=state.backup[0], restored=True)
        if not world.running:
            after = after._replace(processes=(FRESH,) * len(state.processes), net=(), duties=())
        yield f"the store is restored to {after.store.max}", world.spent("restore", after), ""
