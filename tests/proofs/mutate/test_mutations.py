"""The list of mutations fits the source, and what finds a harm is there."""

from tests.proofs.mutate.mutations import mutations


def test_each_guard_stands_where_it_is_taken_out_and_its_tests_are_there() -> None:
    listed = mutations()
    assert len(listed) >= 54
    assert [problem for each in listed if (problem := each.problem())] == []


def test_a_guard_of_one_colour_names_that_of_the_other() -> None:
    listed = {each.name: each for each in mutations()}
    for each in listed.values():
        if each.twin:
            assert {each.colour, listed[each.twin].colour} == {"aio", "blocking"}, each.name
