"""Numbers that are issued, and the promises that each of them may break."""

from tests.proofs.model.scripts import Scheme
from tests.proofs.model.state import PERIOD_BITS, State, World, put_node, put_process


def value(world: World, scheme: Scheme, number: int) -> int:
    """Return what users see of a number: from each change on they lie twice as far apart as before.

    What was reserved before a change looks as before. With periods the number tells the period, and stays as it is.
    """
    if world.periods or not scheme:
        return number
    shown, since, stride = 0, 0, 1
    for change in scheme:
        if number <= change:
            break
        shown, since, stride = shown + (change - since) * stride, change, 2 * stride
    return shown + (number - since) * stride


def learned(world: World, known: Scheme, read: Scheme) -> Scheme:
    """Return the scheme by which a process makes numbers once a record has come: of two the later."""
    return known if len(read) < len(known) and world.guards.record_turn else read


def issue(world: World, state: State, number: int, *, by: int, through: int = -1) -> tuple[State, str]:
    """Return the state with the number issued by that process, and the promise that it broke.

    `through`: the server that it was drawn from just now, if it didn't come out of the process's hand.
    """
    process = state.processes[by]
    shown = value(world, process.scheme, number)
    harm = ""
    if state.issued >> shown & 1:
        harm = f"REPEAT {shown}"
    elif number > state.store.max and not state.restored:
        harm = f"ABOVE {number}, and the store's max is {state.store.max}"
    elif number > state.store.limit:
        harm = f"LIMIT {number}, and the limit is {state.store.limit}"
    elif world.strict and through >= 0 and shown <= state.nodes[through].last:
        harm = f"ORDER {shown}, and {state.nodes[through].last} was issued before"
    elif not world.strict and number <= process.last and not world.may_split:
        harm = f"ORDER {number}, and the process has issued {process.last}"
    elif number <= process.knows:
        harm = f"RETIRED {number}, and the process knew of the floor {process.knows}"
    elif world.periods and through >= 0 and number >> PERIOD_BITS < state.nodes[through].clock:
        harm = f"PERIOD {number >> PERIOD_BITS}, and it is {state.nodes[through].clock} by the server's clock"
    state = state._replace(issued=state.issued | 1 << shown)
    if through >= 0 and shown > state.nodes[through].last:
        state = put_node(state, through, state.nodes[through]._replace(last=shown))
    if world.remembers and number > process.last:
        state = put_process(state, by, process._replace(last=number))
    return state, harm


def issue_all(world: World, state: State, numbers: range, *, by: int, through: int = -1) -> tuple[State, str]:
    """Issue them one after the other; return the first promise that was broken."""
    broken = ""
    for number in numbers:
        state, harm = issue(world, state, number, by=by, through=through)
        broken = broken or harm
    return state, broken


def issue_range(world: World, state: State, numbers: range, *, by: int) -> tuple[State, str]:
    """Issue a range that was reserved for a caller: it stands in no order with the process's other numbers."""
    process = state.processes[by]
    apart = put_process(state, by, process._replace(last=0))
    state, harm = issue_all(world, apart, numbers, by=by)
    if len(numbers) < world.range:
        harm = harm or f"SHORT: {len(numbers)} numbers, and {world.range} were asked for"
    if world.guards.range_seen:
        process = process._replace(beyond=max(process.beyond, numbers[-1]))
    return put_process(state, by, process), harm


def issue_for(
    world: World, state: State, key: int, number: int, *, by: int, through: int, again: bool
) -> tuple[State, str]:
    """Issue the number of a caller's key: `again` it may come as often as the key does, to that one alone."""
    shown = value(world, state.processes[by].scheme, number)
    if (key, shown) in state.had:
        return state, ""
    had = [number for of, number in state.had if of == key]
    process = state.processes[by]
    if again:
        # The first reply was lost: in the order of draws its place is before all that was drawn since.
        state = put_process(state, by, process._replace(last=0, knows=0))
    after, harm = issue(world, state, number, by=by, through=-1 if again else through)
    if again:
        after = put_process(after, by, process)
    if had and not world.forgets:
        harm = harm or f"TWO: key {key} has had {had[0]}, and gets {shown}"
    return after._replace(had=tuple(sorted((*state.had, (key, shown))))), harm


def in_hand(state: State) -> int:
    """How many numbers may still be issued: in Redis, in processes, on their way."""
    count = 0
    for node in state.nodes:
        if node.master and node.hash and node.hash.fence == node.reign:
            count += node.hash.max - node.hash.cur + max(0, node.hash.next_max - node.hash.next_cur)
    for process in state.processes:
        count += sum(piece.high - piece.used for piece in process.hand)
        count += process.work.high - process.work.low if process.work.done == "reserved" else 0
    return count + sum(message.high - message.low for message in state.net)


def gap(world: World, state: State) -> str:
    """Return the harm if more numbers are lost than the events so far may cost."""
    if not world.gap:
        return ""
    events = sum(world.faults.values()) - sum(state.left) + state.refusals
    lost = state.store.max - state.issued.bit_count() - in_hand(state)
    return f"GAP {lost} lost by {events} events" if lost > events * world.gap else ""
