"""Each guard is left out of the model once, and the search must find the harm: else the model proves nothing of it.

The harms: REPEAT, a number is issued twice; ABOVE, one above the store's max; ORDER, one after a higher one; RETIRED,
one up to a floor that its process knew of; TWO, a caller's key has two numbers; LIMIT, a number lies above the tag's
limit; SHORT, a range has too few; PERIOD, a number of a period that is over; TAKEN, the store hands out numbers that
were issued; DEAD, something was taken in where nobody can draw it; PUSHED OUT, numbers were overwritten.
"""

from dataclasses import dataclass, fields, replace

import pytest

from tests.proofs.model.guards import Guards, without
from tests.proofs.model.search import search
from tests.proofs.model.worlds import LARGE, SMALL


@dataclass(frozen=True, slots=True)
class Mutation:
    """Without these guards that world must show that harm. `step`: what must come up in its trace."""

    guards: str
    harm: str
    world: str
    step: str


MUTATIONS = [
    Mutation("role", "REPEAT", "a lagging replica is promoted", "from B"),
    Mutation("replid", "REPEAT", "a lagging replica is promoted", "B is promoted"),
    Mutation("replid", "REPEAT", "Redis goes back to a snapshot", "A starts again"),
    Mutation("node", "REPEAT", "a node of a Cluster takes over", "B takes over"),
    Mutation("fence", "REPEAT", "a lagging replica is promoted", "B is promoted"),
    Mutation("fence", "REPEAT", "Redis goes back to a snapshot", "A starts again"),
    Mutation("clamp", "ABOVE", "leases given back", "leases"),
    Mutation("reserved_only", "REPEAT", "a process crashes, replies are lost, keys are lost", "draws"),
    Mutation("reserved_only", "ABOVE", "a process crashes, replies are lost, keys are lost", "draws"),
    Mutation("arm_empties", "REPEAT", "Redis goes back to a snapshot", "opens on A"),
    Mutation("arm_fence", "REPEAT", "a script ends half done, the scheme changes", "an arming ends half done"),
    Mutation("load_born", "ORDER", "a process crashes, replies are lost, keys are lost", "loses its keys"),
    Mutation("load_top", "ORDER", "recovered under load", "load of"),
    Mutation("load_full", "PUSHED OUT", "what one fault costs", "load of"),
    Mutation("floor_born", "RETIRED", "leases, and a recovery", "raised: A is floored"),
    Mutation("floor_stays", "REPEAT", "the store is restored, direct", "the store is restored"),
    Mutation("give_born", "RETIRED", "leases, and a recovery", "giveback of"),
    Mutation("give_cur", "REPEAT", "leases given back", "giveback of"),
    Mutation("give_backs", "REPEAT", "leases given back, and a copy", "a copy is still on its way"),
    Mutation("give_low", "REPEAT", "leases given back, and a copy", "a copy is still on its way"),
    Mutation("sent_is_spent", "REPEAT", "a process crashes, replies are lost, keys are lost", "and hands it back"),
    Mutation("rejoin_floors", "ORDER", "direct, one process", "draws from Redis again"),
    Mutation("fork_drops", "REPEAT", "forked", "forks"),
    Mutation("lease_looks", "RETIRED", "leases, and a recovery", "looks whether its leases still hold"),
    Mutation("hand_above", "REPEAT", "one process goes on through a restore", "the store is restored"),
    Mutation("certain", "REPEAT", "a process crashes, replies are lost, keys are lost", "hears nothing"),
    Mutation("halts", "REPEAT", "halted, then keys are lost", "looks again"),
    Mutation("version", "REPEAT", "direct, and handed back", "a copy is still on its way"),
    Mutation("tombstone", "REPEAT", "deleted and made again", "the tag is made again"),
    Mutation("told", "REPEAT", "the store is restored, direct", "recover raises"),
    Mutation("clamp", "ABOVE", "several at once", "draws"),
    Mutation("own_low", "REPEAT", "several at once", "draws"),
    Mutation("limit", "LIMIT", "a limit", "reserves"),
    Mutation("limit_kept", "LIMIT", "a limit", "the limit is set to"),
    Mutation("exact", "SHORT", "ranges, without Redis", "for a caller"),
    Mutation("range_seen", "REPEAT", "ranges through a restore", "the store is restored"),
    Mutation("once_kept", "TWO", "two keys", "for key"),
    Mutation("kept_scheme", "TWO", "keys", "again"),
    Mutation("draw_scheme", "REPEAT", "the scheme changes, two processes", "the scheme is changed"),
    Mutation("draw_scheme", "TWO", "keys", "for key"),
    Mutation("open_scheme", "REPEAT", "the scheme changes again, keys are lost", "the scheme is changed"),
    Mutation("arm_scheme", "REPEAT", "restored to before a change, restart", "A starts again"),
    Mutation("floor_drops", "REPEAT", "the scheme changes again", "floors A"),
    Mutation("reserved_scheme", "REPEAT", "the scheme changes", "the scheme is changed"),
    Mutation("behind_scheme", "REPEAT", "restored to before a change", "the hash lags behind"),
    Mutation("record_turn", "REPEAT", "the scheme changes, direct", "has read the record"),
    Mutation("own_scheme", "REPEAT", "the scheme changes, direct", "for itself"),
    Mutation("change_seen", "REPEAT", "the scheme changes, direct", "the scheme is changed"),
    Mutation("range_scheme", "REPEAT", "the scheme changes, ranges", "for a caller"),
    Mutation("draw_over", "PERIOD", "periods, one process", "it is 1 by the clock"),
    Mutation("period_unknown", "PERIOD", "periods, keys are lost", "opens on A"),
]


#: The search without it takes ten seconds; test_walks.py shows the guard as well, in the script and in the model.
LONG = {"open_scheme"}


def marked(mutation: Mutation) -> pytest.MarkDecorator | tuple[()]:
    if mutation.guards in LONG:
        return pytest.mark.soak
    return pytest.mark.live if mutation.world in LARGE else ()


@pytest.mark.covers("N.1")
@pytest.mark.parametrize(
    "mutation",
    [pytest.param(each, marks=marked(each)) for each in MUTATIONS],
    ids=[f"{each.guards}: {each.harm}, {each.world}" for each in MUTATIONS],
)
def test_without_the_guard_the_search_finds_the_harm(mutation: Mutation) -> None:
    shows(mutation)


def shows(mutation: Mutation) -> None:
    world = {**SMALL, **LARGE}[mutation.world]
    found = search(replace(world, guards=without(*mutation.guards.split())), mutation.harm, most=100_000)
    assert found.harm, f"no harm without {mutation.guards} in {found.states} states"
    assert any(mutation.step in label for label in found.trace), str(found)


def is_harmless(guards: str, harm: str, world: str) -> None:
    found = search(replace(SMALL[world], guards=without(*guards.split())), harm, most=60_000)
    assert not found.harm, str(found)


# ------------------------------------------------------------------------------------------------ two belts


def test_a_load_in_another_reign_is_lost_and_without_born_it_comes_out_of_order() -> None:
    """Born is fresh in each reign, so it alone keeps numbers in order.

    Without the reign a load is only said to be taken: what a hash of another reign took in cannot be drawn, and is a
    gap that nobody was told of.
    """
    world = "Redis goes back to a snapshot"
    shows(Mutation("load_reign", "DEAD", world, "A starts again"))
    is_harmless("load_reign", "ORDER", world)
    is_harmless("load_reign", "REPEAT", world)
    shows(Mutation("load_reign load_born", "ORDER", world, "A starts again"))


def test_a_tail_given_back_in_another_reign_is_lost() -> None:
    """The same, of `giveback`: in the hash of an older reign nobody draws the numbers that it took back."""
    shows(Mutation("give_reign", "DEAD", "leases across a rollback", "A starts again"))
    is_harmless("give_reign", "REPEAT", "leases across a rollback")


def test_a_second_copy_of_a_load_repeats_as_soon_as_one_of_its_belts_is_gone() -> None:
    """Loads go out once, though born and top together refuse every copy that the model knows: either alone doesn't."""
    world = "a load arrives twice"
    is_harmless("load_once", "", world)
    shows(Mutation("load_once load_born", "REPEAT", world, "a copy is still on its way"))
    shows(Mutation("load_once load_top", "REPEAT", world, "a copy is still on its way"))


def test_a_store_behind_hands_out_what_was_issued_and_without_the_top_it_is_issued_again() -> None:
    """Without at_least the store hands out taken ranges, and nobody is told; of loading them only `top` keeps Redis."""
    world = "the store is restored, nobody recovers"
    shows(Mutation("at_least", "TAKEN", world, "the store is restored"))
    is_harmless("at_least", "REPEAT", world)
    shows(Mutation("at_least load_top", "REPEAT", world, "the store is restored"))


def test_a_store_restored_while_issuers_run_repeats_with_every_guard_in_place() -> None:
    """Why the rule is to stop them: what they hold, and loads on their way, `recover` cannot know of."""
    world = replace(SMALL["the store is restored, direct"], running=True)
    found = search(world, "REPEAT", most=60_000)
    assert found.harm, f"no harm in {found.states} states"
    assert any("raised: A is floored" in label for label in found.trace), str(found)


def test_two_takeovers_in_a_row_lead_back_to_a_hash_that_nobody_has_opened_between_them() -> None:
    """What the fence cannot detect in a Cluster: docs/explain/fence.md."""
    found = search(replace(SMALL["a node of a Cluster takes over"], faults={"takeover": 2}), "REPEAT", most=60_000)
    took = [number for number, label in enumerate(found.trace) if "takes over" in label]
    assert len(took) == 2, str(found)
    assert not any("opens" in label for label in found.trace[slice(*took)])


def test_every_guard_is_left_out_somewhere() -> None:
    paired = {"load_reign", "give_reign", "load_once", "at_least"}
    assert {each.guards for each in MUTATIONS} | paired == {field.name for field in fields(Guards)}
