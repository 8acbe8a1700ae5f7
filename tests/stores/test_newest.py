"""What a store remembers of each tag is bounded."""

from issuer_persistence.newest import Newest


def test_the_entries_that_were_set_last_are_kept() -> None:
    newest: Newest[int] = Newest(2)
    newest["a"], newest["b"], newest["a"] = 1, 2, 3
    newest["c"] = 4
    assert newest == {"a": 3, "c": 4}
