"""Numbers that are issued, and the promises that each of them may break."""

from tests.model.state import State, World, put_node, put_process


def issue(world: World, state: State, number: int, *, by: int, through: int = -1) -> tuple[State, str]:
    """Return the state with the number issued by that process, and the promise that it broke.

    `through`: the server that it was drawn from just now, if it didn't come out of the process's hand.
    """
    process = state.processes[by]
    harm = ""
    if state.issued >> number & 1:
        harm = f"REPEAT {number}"
    elif number > state.store.max and not state.restored:
        harm = f"ABOVE {number}, and the store's max is {state.store.max}"
    elif world.strict and through >= 0 and number <= state.nodes[through].last:
        harm = f"ORDER {number}, and {state.nodes[through].last} was issued before"
    elif not world.strict and number <= process.last and not world.may_split:
        harm = f"ORDER {number}, and the process has issued {process.last}"
    elif number <= process.knows:
        harm = f"RETIRED {number}, and the process knew of the floor {process.knows}"
    state = state._replace(issued=state.issued | 1 << number)
    if through >= 0 and number > state.nodes[through].last:
        state = put_node(state, through, state.nodes[through]._replace(last=number))
    if world.remembers and number > process.last:
        state = put_process(state, by, process._replace(last=number))
    return state, harm


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
