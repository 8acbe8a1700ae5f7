"""What a process does, as issuer/core has it, in steps that other processes' steps may come between."""

from collections.abc import Iterator

from tests.model import scripts, store
from tests.model.issuing import issue
from tests.model.state import (
    FRESH,
    IDLE,
    STORE,
    Message,
    Piece,
    Process,
    State,
    Step,
    Work,
    World,
    born_for,
    fresh_born,
    fresh_version,
    put_hash,
    put_process,
    send,
)

#: Pieces that a hand holds: issuer.core.hand.BUFFERS.
BUFFERS = 2

Steps = Iterator[Step]


def steps(world: World, state: State) -> Steps:
    """All that any process may do now."""
    if state.restored and world.cautious:
        return
    for at, process in enumerate(state.processes):
        # Two processes in the same state do the same.
        if process in state.processes[:at]:
            continue
        yield from _serve(world, state, at)
        yield from extension(world, state, at)
        if process.way == "redis":
            yield from _draw(world, state, at)
            yield from _look(world, state, at)
        yield from _direct(world, state, at)
        if world.stops and process != FRESH:
            stopped = put_process(_given_back(state, at), at, FRESH)
            yield f"P{at} stops, and gives back what it holds", stopped, ""
        yield from _ends(world, state, at)


# ------------------------------------------------------------------------------------------------ numbers


def _draw(world: World, state: State, at: int) -> Steps:
    process = state.processes[at]
    for where, node in enumerate(state.nodes):
        if world.lease:
            if len(process.hand) < BUFFERS:
                yield from _lease(world, state, at, where)
            continue
        reply, hash = scripts.next(node, world.guards, 1, electing=False)
        if reply[0] != "ok":
            continue
        number = int(reply[1]) + 1
        after = put_hash(state, where, hash)
        yield f"P{at} draws {number} from {name(where)}", *issue(world, after, number, by=at, through=where)
        if world.may("lost", state):
            yield f"P{at} draws {number} from {name(where)}, the reply is lost", world.spent("lost", after), ""


def _lease(world: World, state: State, at: int, where: int) -> Steps:
    process = state.processes[at]
    reply, hash = scripts.lease(state.nodes[where], world.guards, world.lease, electing=False)
    if reply[0] != "ok":
        return
    low, high, fence, born = (int(word) for word in reply[1:5])
    after = put_hash(state, where, hash)
    if not world.guards.hand_above or low >= _end(process):
        piece = Piece(low, low, high, fence, born)
        after = put_process(after, at, process._replace(hand=(*process.hand, piece)))
    else:
        after = send(after, Message("giveback", low, high, fence, born))
    yield f"P{at} leases ({low}, {high}] from {name(where)}", after, ""


def _end(process: Process) -> int:
    """Nothing below this is taken into the hand."""
    return process.hand[-1].high if process.hand else process.last


def _serve(world: World, state: State, at: int) -> Steps:
    process = state.processes[at]
    if not process.hand or process.way == "rejoining":
        return
    first, *rest = process.hand
    number = first.used + 1
    left = (first._replace(used=number), *rest) if number < first.high else tuple(rest)
    after = put_process(state, at, process._replace(hand=left))
    yield f"P{at} issues {number} out of its hand", *issue(world, after, number, by=at)


def _look(world: World, state: State, at: int) -> Steps:
    """Hold the leases against the hash."""
    process = state.processes[at]
    leases = [piece for piece in process.hand if piece.reign]
    if not leases or process.knows == state.retired:
        return
    for where, node in enumerate(state.nodes):
        reply, hash = scripts.open(node, world.guards, born_for(state, node), STORE, "look")
        if reply[0] != "open":
            continue
        moved = any((piece.reign, piece.born) != reply[1:3] for piece in leases)
        kept = () if moved and world.guards.lease_looks else process.hand
        looked = process._replace(hand=kept, knows=state.retired)
        yield f"P{at} looks whether its leases still hold", put_process(put_hash(state, where, hash), at, looked), ""


# ------------------------------------------------------------------------------------------------ extension


def extension(world: World, state: State, at: int) -> Steps:
    """The next step of that process's extension: open, reserve, load."""
    match state.processes[at].work.done:
        case "" if state.processes[at].way == "redis":
            yield from _open(world, state, at)
        case "opened":
            yield from _reserve(world, state, at)
        case "behind":
            yield from _confirm(world, state, at)
        case "reserved":
            yield from _load(world, state, at)


def _open(world: World, state: State, at: int) -> Steps:
    for where, node in enumerate(state.nodes):
        # Elected already: an election may lapse at any moment, so it keeps nobody from loading here.
        reply, hash = scripts.open(node, world.guards, born_for(state, node), STORE, "mine")
        if reply[0] != "open":
            continue
        _, reign, born, top, _, due, _ = (int(word) if word != "open" else 0 for word in reply)
        after = put_hash(state, where, hash)
        if due:
            after = _works(after, at, Work("opened", reign, born, top))
        if after != state:
            yield f"P{at} opens on {name(where)}: reign {reign}, born {born}, top {top}", after, ""


def _works(state: State, at: int, work: Work) -> State:
    return put_process(state, at, state.processes[at]._replace(work=work))


def _reserved(world: World, state: State, at_least: int) -> tuple[str, State]:
    """Reserve a step: "ok", "refused", "behind", or "" beyond the bounds; and the state after it."""
    outcome, after = store.reserve(state.store, world.guards, world.step, at_least, fresh_version(state))
    if outcome == "ok" and after.max > world.highest:
        return "", state
    return "refused" if outcome in ("halted", "deleted") else outcome, state._replace(store=after)


def _reserve(world: World, state: State, at: int) -> Steps:
    process = state.processes[at]
    work, low = process.work, state.store.max
    outcome, after = _reserved(world, state, max(work.top, process.last))
    match outcome:
        case "refused":
            yield f"P{at} is refused a reservation", _works(state, at, IDLE), ""
        case "behind":
            behind = work._replace(done="behind", low=low)
            yield f"P{at} sees the store behind, at {low}", _works(state, at, behind), ""
        case "ok":
            high = after.store.max
            work = work._replace(done="reserved", low=low, high=high, version=after.store.version)
            yield f"P{at} reserves ({low}, {high}]", _works(after, at, work), _taken(state, low, high)
            if world.may("lost", state):
                lost = world.spent("lost", _works(after, at, IDLE))
                yield f"P{at} reserves ({low}, {high}], the reply is lost", lost, ""
                if not world.guards.certain and low >= world.step:
                    guess = _works(state, at, work._replace(low=low - world.step, high=low))
                    yield f"P{at} hears nothing, and takes the end of the store", world.spent("lost", guess), ""


def _taken(state: State, low: int, high: int) -> str:
    """A range is handed out that was issued already: unless it is refused everywhere, its numbers come twice."""
    issued = state.issued >> low + 1 & (1 << high - low) - 1
    return f"TAKEN: of ({low}, {high}] some are issued" if issued else ""


def _confirm(world: World, state: State, at: int) -> Steps:
    process = state.processes[at]
    work = process.work
    idle = _works(state, at, IDLE)
    if work.low < process.last:
        yield f"P{at} has seen {process.last} itself, and halts the tag", _halted(idle, process.last), ""
        return
    for where, node in enumerate(state.nodes):
        reply, hash = scripts.open(node, world.guards, born_for(state, node), STORE, "look")
        if reply[0] != "open":
            continue
        after, top = put_hash(idle, where, hash), int(reply[3])
        if reply[1:3] == (work.reign, work.born) and top > work.low:
            after = _halted(after, top)
        yield f"P{at} looks again on {name(where)}", after, ""


def _halted(state: State, below: int) -> State:
    return state._replace(store=store.halt(state.store, below, fresh_version(state)))


def _load(world: World, state: State, at: int) -> Steps:
    work = state.processes[at].work
    after = _works(state, at, IDLE)
    load = Message("load", work.low, work.high, work.reign, work.born)
    yield f"P{at} sends the load of ({work.low}, {work.high}]", send(after, load), ""
    if not world.guards.sent_is_spent:
        back = Message("handback", work.low, work.high, version=work.version)
        yield f"P{at} sends the load of ({work.low}, {work.high}], and hands it back", send(after, load, back), ""


# ------------------------------------------------------------------------------------------------ without Redis


def _direct(world: World, state: State, at: int) -> Steps:
    process = state.processes[at]
    if process.way == "redis" and world.may("cut", state):
        gone = put_process(state, at, process._replace(way="direct"))
        yield f"P{at} doesn't reach Redis, and goes direct", world.spent("cut", gone), ""
    if process.way == "direct":
        yield from _reserve_own(world, state, at)
        rejoining = put_process(_given_back(state, at), at, process._replace(way="rejoining", hand=()))
        yield f"P{at} reaches Redis again, and gives back what it holds", rejoining, ""
    if process.way == "rejoining":
        back = put_process(state, at, process._replace(way="redis"))
        if not world.guards.rejoin_floors:
            yield f"P{at} draws from Redis again", back, ""
            return
        for where, node in enumerate(state.nodes):
            reply, hash = scripts.floor(node, world.guards, process.last, fresh_born(state), STORE)
            if reply[0] == "floored":
                label = f"P{at} floors {name(where)} at {process.last}, and draws from Redis again"
                yield label, put_hash(back, where, hash), ""


def _reserve_own(world: World, state: State, at: int) -> Steps:
    process = state.processes[at]
    if len(process.hand) >= BUFFERS:
        return
    low = state.store.max
    outcome, after = _reserved(world, state, process.last)
    if outcome == "behind":
        yield f"P{at} has seen {process.last} itself, and halts the tag", _halted(state, process.last), ""
    if outcome != "ok":
        return
    high, version = after.store.max, after.store.version
    after = after._replace(journal=max(state.journal, high) if "restore" in world.faults else 0)
    if low >= _end(process) or not world.guards.hand_above:
        piece = Piece(low, low, high, version=version)
        after = put_process(after, at, process._replace(hand=(*process.hand, piece)))
        yield f"P{at} reserves ({low}, {high}] for itself", after, _taken(state, low, high)
    else:
        refused = _halted(send(after, Message("handback", low, high, version=version)), _end(process))
        yield f"P{at} reserves ({low}, {high}], holds up to {_end(process)}, and halts the tag", refused, ""


# ------------------------------------------------------------------------------------------------ giving back


def _given_back(state: State, at: int) -> State:
    """What is left in the hand goes back where it came from, as far as it lies end to end."""
    hand = state.processes[at].hand
    own = [piece for piece in hand if not piece.reign]
    leases = [piece for piece in hand if piece.reign]
    if own:
        state = send(state, Message("handback", _start(own), own[-1].high, version=own[-1].version))
    if leases:
        last = leases[-1]
        state = send(state, Message("giveback", _start(leases), last.high, last.reign, last.born))
    return state


def _start(pieces: list[Piece]) -> int:
    start = pieces[-1]
    for piece in reversed(pieces[:-1]):
        if (piece.high, piece.reign, piece.born) != (start.low, start.reign, start.born):
            break
        start = piece
    return start.used


def _ends(world: World, state: State, at: int) -> Steps:
    process = state.processes[at]
    if process != FRESH and world.may("crash", state):
        yield f"P{at} crashes", world.spent("crash", put_process(state, at, FRESH)), ""
    if process != FRESH and FRESH in state.processes and world.may("fork", state):
        child = process if not world.guards.fork_drops else process._replace(hand=(), work=IDLE)
        other = state.processes.index(FRESH)
        yield f"P{at} forks P{other}", world.spent("fork", put_process(state, other, child)), ""


def name(where: int) -> str:
    """Servers are called A, B."""
    return "AB"[where]
