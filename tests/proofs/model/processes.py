"""What a process does, as issuer/core has it, in steps that other processes' steps may come between."""

from collections.abc import Iterator

from tests.proofs.model import scripts, store
from tests.proofs.model.issuing import issue, issue_all, issue_for, issue_range, learned, value
from tests.proofs.model.scripts import NEVER, Reply
from tests.proofs.model.state import (
    FRESH,
    IDLE,
    PERIOD_BITS,
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
    put_node,
    put_process,
    send,
)

#: Pieces that a hand holds: issuer.core.supply.local_buffer.BUFFERS.
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
            yield from _once(world, state, at)
            yield from _look(world, state, at)
        yield from _reserve_range(world, state, at)
        yield from _learn(world, state, at)
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
        reply, hash = scripts.next(node, world.guards, world.draw, process.scheme, electing=False)
        if reply[0] != "ok":
            continue
        low, high = _numbers(reply, 1, 2)
        numbers = range(low + 1 if world.guards.own_low else max(1, high - world.draw + 1), high + 1)
        label = f"P{at} draws {' '.join(map(str, numbers))} from {name(where)}"
        after = put_hash(state, where, hash)
        yield label, *issue_all(world, after, numbers, by=at, through=where)
        if world.may("lost", state):
            yield f"{label}, the reply is lost", world.spent("lost", after), ""


def _numbers(reply: Reply, *places: int) -> tuple[int, ...]:
    return tuple(word for word in (reply[place] for place in places) if isinstance(word, int))


def _once(world: World, state: State, at: int) -> Steps:
    for key in range(1, world.keys + 1):
        for where, node in enumerate(state.nodes):
            known = state.processes[at].scheme
            reply, after_draw = scripts.once(node, world.guards, key, known, electing=False)
            after = put_node(state, where, after_draw)
            match reply:
                case ("again", int(number), tuple(under)):
                    if len(under) > len(known) and world.guards.kept_scheme:
                        after = _learnt(world, after, at)
                        if len(under) > len(after.processes[at].scheme):
                            continue  # the store is behind
                case ("ok", _, int(number)):
                    pass
                case _:
                    continue
            label = f"P{at} draws {number} from {name(where)} for key {key}, {reply[0]}"
            again = reply[0] == "again"
            yield label, *issue_for(world, after, key, number, by=at, through=where, again=again)
            if not again and world.may("lost", state):
                yield f"{label}, the reply is lost", world.spent("lost", after), ""


def _reserve_range(world: World, state: State, at: int) -> Steps:
    """Numbers for a caller straight from the store, past Redis and past the process's hand."""
    process = state.processes[at]
    if not world.range or process.scheme:
        return
    low = state.store.max
    outcome, after = _reserved(world, state, process.taken, n=world.range, exact=True)
    if outcome == "behind":
        yield f"P{at} has seen {process.taken} itself, and halts the tag", _halted(state, process.taken), ""
    if outcome != "ok":
        return
    high, version = after.store.max, after.store.version
    label = f"P{at} reserves ({low}, {high}] for a caller"
    if after.store.scheme and world.guards.range_scheme:
        after = _learnt(world, send(after, Message("handback", low, high, version=version)), at)
        yield f"{label}; the tag has a scheme, and the range goes back", after, ""
    else:
        yield label, *issue_range(world, after, range(low + 1, high + 1), by=at)
    if world.may("lost", state):
        yield f"{label}, the reply is lost", world.spent("lost", state._replace(store=after.store)), ""


def _learn(world: World, state: State, at: int) -> Steps:
    """Read the record; what it said may be as old as any."""
    known, now = state.processes[at].scheme, state.store.scheme
    for turn in range(len(now) + 1):
        read = learned(world, known, now[:turn])
        if read != known:
            process = state.processes[at]._replace(scheme=read)
            yield f"P{at} has read the record of scheme {read}", put_process(state, at, process), ""


def _learnt(world: World, state: State, at: int) -> State:
    process = state.processes[at]
    return put_process(state, at, process._replace(scheme=learned(world, process.scheme, state.store.scheme)))


def _lease(world: World, state: State, at: int, where: int) -> Steps:
    process = state.processes[at]
    reply, hash = scripts.lease(state.nodes[where], world.guards, world.lease, process.scheme, electing=False)
    if reply[0] != "ok":
        return
    low, high, fence, born, backs = _numbers(reply, 1, 2, 3, 4, 5)
    after = put_hash(state, where, hash)
    if not world.guards.hand_above or low >= _end(process):
        piece = Piece(low, low, high, fence, born, backs=backs)
        after = put_process(after, at, process._replace(hand=(*process.hand, piece)))
    else:
        after = send(after, Message("giveback", low, high, fence, born, backs=backs))
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
        reply, hash = scripts.open(
            node, world.guards, born_for(state, node), STORE, "look", scheme=process.scheme, until=world.until
        )
        if reply[0] not in ("open", "otherscheme"):
            continue
        moved = any((piece.reign, piece.born) != reply[1:3] for piece in leases)
        kept = () if moved and world.guards.lease_looks else process.hand
        looked = process._replace(hand=kept, knows=state.retired)
        yield f"P{at} looks whether its leases still hold", put_process(put_hash(state, where, hash), at, looked), ""


# ------------------------------------------------------------------------------------------------ extension


def extension(world: World, state: State, at: int) -> Steps:
    """The next step of that process's extension: open, reserve, load; and what another scheme or a new period asks."""
    match state.processes[at].work.done:
        case "" if state.processes[at].way == "redis":
            yield from _open(world, state, at)
        case "opened":
            yield from _reserve(world, state, at)
        case "behind":
            yield from _confirm(world, state, at)
        case "reserved":
            yield from _load(world, state, at)
        case "other":
            yield from _catch_up(world, state, at)
        case "over":
            yield from _begin_period(world, state, at)
        case "floor":
            yield from _floor(world, state, at)


def _open(world: World, state: State, at: int) -> Steps:
    known = state.processes[at].scheme
    for where, node in enumerate(state.nodes):
        # Elected or not: an election may lapse at any moment, so it keeps nobody from loading here.
        born = born_for(state, node)
        reply, hash = scripts.open(node, world.guards, born, STORE, "claim", scheme=known, until=world.until)
        after = put_hash(state, where, hash)
        match reply:
            case ("otherscheme", tuple(found)):
                after = _works(after, at, Work("other", scheme=found))
                label = f"P{at} opens on {name(where)}, which has scheme {found}"
            case ("open", int(reign), int(armed), int(top), _, due, _, *clock):
                if clock:
                    after = _works(after, at, Work("over", low=_numbers(reply, 7)[0], scheme=known))
                elif due:
                    after = _works(after, at, Work("opened", reign, armed, top, scheme=known))
                label = f"P{at} opens on {name(where)}: reign {reign}, born {armed}, top {top}{', over' * len(clock)}"
            case _:
                continue
        if after != state:
            yield label, after, ""


def _catch_up(world: World, state: State, at: int) -> Steps:
    """The hash has another scheme than the process knows: either of them lags behind the store, or the store does."""
    found, now = state.processes[at].work.scheme, state.store.scheme
    after = _learnt(world, _works(state, at, IDLE), at)
    if state.store.deleted:
        yield f"P{at} finds the tag deleted", _works(state, at, IDLE), ""
    elif len(now) < len(found) and world.guards.behind_scheme:
        yield f"P{at} sees the store behind, at scheme {now}", _halted(after, NEVER), ""
    elif now != found:
        yield f"P{at} sees that the hash lags behind", _works(after, at, Work("floor", scheme=now)), ""
    else:
        yield f"P{at} reads the record of scheme {now}", after, ""


def _begin_period(world: World, state: State, at: int) -> Steps:
    """First the store, then the hash. If the store's numbers are of a later period already, that one goes on."""
    if state.store.deleted:
        yield f"P{at} finds the tag deleted", _works(state, at, IDLE), ""
        return
    begun = state.processes[at].work.low << PERIOD_BITS
    raised = store.raise_to(state.store, begun, fresh_version(state))
    if raised.max > world.highest:
        return
    floor = Work("floor", low=raised.max >> PERIOD_BITS << PERIOD_BITS, scheme=raised.scheme)
    yield f"P{at} raises the store to {raised.max}", _works(state._replace(store=raised), at, floor), ""


def _floor(world: World, state: State, at: int) -> Steps:
    work = state.processes[at].work
    # A period ends where the one after it begins.
    until = (work.low >> PERIOD_BITS) + 1 if world.periods else NEVER
    for where, node in enumerate(state.nodes):
        born = fresh_born(state)
        reply, hash = scripts.floor(node, world.guards, work.low, born, STORE, scheme=work.scheme, until=until)
        if reply[0] == "floored":
            after = _works(put_hash(state, where, hash), at, IDLE)
            yield f"P{at} floors {name(where)} at {work.low}, of scheme {work.scheme}", after, ""


def _works(state: State, at: int, work: Work) -> State:
    return put_process(state, at, state.processes[at]._replace(work=work))


def _reserved(world: World, state: State, at_least: int, *, n: int = 0, exact: bool = False) -> tuple[str, State]:
    """Reserve n numbers, or a step: "ok", "refused", "behind", or "" beyond the bounds; and the state after it."""
    before, version = state.store, fresh_version(state)
    outcome, after = store.reserve(before, world.guards, n or world.step, at_least, version, exact=exact)
    # The real periods are so long that no segment reaches from one into the next.
    if after.max > world.highest or (world.periods and after.max >> PERIOD_BITS != before.max >> PERIOD_BITS):
        return "", state
    return "refused" if outcome in ("halted", "deleted", "full") else outcome, state._replace(store=after)


def _sizes(world: World) -> tuple[int, ...]:
    """How many numbers a segment may hold: a step, or what a caller wants where that is more."""
    return (world.step, world.wanted) if world.wanted > world.step else (world.step,)


def _reserve(world: World, state: State, at: int) -> Steps:
    for size in _sizes(world):
        yield from _reserve_segment(world, state, at, size)


def _reserve_segment(world: World, state: State, at: int, size: int) -> Steps:
    process = state.processes[at]
    work, low = process.work, state.store.max
    outcome, after = _reserved(world, state, max(work.top, process.taken), n=size)
    match outcome:
        case "ok" if after.store.scheme != work.scheme and world.guards.reserved_scheme:
            label = f"P{at} reserves ({low}, {after.store.max}], which has another scheme than the hash"
            yield label, _learnt(world, _works(after, at, IDLE), at), ""
        case "refused":
            yield f"P{at} is refused a reservation", _works(state, at, IDLE), ""
        case "behind":
            behind = work._replace(done="behind", low=low)
            yield f"P{at} sees the store behind, at {low}", _works(state, at, behind), ""
        case "ok":
            high = after.store.max
            work = work._replace(done="reserved", low=low, high=high, version=after.store.version)
            yield f"P{at} reserves ({low}, {high}]", _works(after, at, work), _taken(world, state, low, high)
            if world.may("lost", state):
                lost = world.spent("lost", _works(after, at, IDLE))
                yield f"P{at} reserves ({low}, {high}], the reply is lost", lost, ""
                if not world.guards.certain and low >= size:
                    guess = _works(state, at, work._replace(low=low - size, high=low))
                    yield f"P{at} hears nothing, and takes the end of the store", world.spent("lost", guess), ""


def _taken(world: World, state: State, low: int, high: int) -> str:
    """A range is handed out that was issued already: unless it is refused everywhere, its numbers come twice."""
    shown = (value(world, state.store.scheme, number) for number in range(low + 1, high + 1))
    issued = any(state.issued >> number & 1 for number in shown)
    return f"TAKEN: of ({low}, {high}] some are issued" if issued else ""


def _confirm(world: World, state: State, at: int) -> Steps:
    process = state.processes[at]
    work = process.work
    idle = _works(state, at, IDLE)
    if work.low < process.taken:
        yield f"P{at} has seen {process.taken} itself, and halts the tag", _halted(idle, process.taken), ""
        return
    for where, node in enumerate(state.nodes):
        born = born_for(state, node)
        reply, hash = scripts.open(node, world.guards, born, STORE, "look", scheme=work.scheme, until=world.until)
        match reply:
            case ("otherscheme", tuple(found)):
                after = _works(idle, at, Work("other", scheme=found))
            case ("open", reign, armed, int(top), *_):
                after = put_hash(idle, where, hash)
                if (reign, armed) == (work.reign, work.born) and top > work.low:
                    after = _halted(after, top)
            case _:
                continue
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
    if len(state.processes[at].hand) < BUFFERS:
        for size in _sizes(world):
            yield from _reserve_own_segment(world, state, at, size)


def _reserve_own_segment(world: World, state: State, at: int, size: int) -> Steps:
    process = state.processes[at]
    low = state.store.max
    outcome, after = _reserved(world, state, process.taken, n=size)
    if outcome == "behind":
        yield f"P{at} has seen {process.taken} itself, and halts the tag", _halted(state, process.taken), ""
    if outcome != "ok":
        return
    high, version = after.store.max, after.store.version
    if world.guards.own_scheme:
        after = _learnt(world, after, at)
        process = after.processes[at]
    after = after._replace(journal=max(state.journal, high) if "restore" in world.faults else 0)
    if low >= _end(process) or not world.guards.hand_above:
        piece = Piece(low, low, high, version=version)
        after = put_process(after, at, process._replace(hand=(*process.hand, piece)))
        yield f"P{at} reserves ({low}, {high}] for itself", after, _taken(world, state, low, high)
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
        back = Message("giveback", _start(leases), last.high, last.reign, last.born, backs=last.backs)
        state = send(state, back)
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
