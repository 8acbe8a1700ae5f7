"""Which tags there may be, and that no two of them share a key."""

from hypothesis import given
from hypothesis import strategies as st

from issuer.errors import InvalidArgument
from issuer.gateway.keys import check_tag, part_tag, redis_key
from tests.refusals import refused

#: Tags with many of the letters that the encoding has to keep apart.
TAGS = st.text(st.sampled_from("%{}257BDab") | st.characters(codec="utf-8"), min_size=1, max_size=12)


def test_any_short_text_without_control_characters_is_a_tag() -> None:
    for tag in ("a", "orders", "a b", "订单", "a:b{c}%7B", "-", "\u202e", "e\u0301", "x" * 200, "é" * 100):
        assert check_tag(tag) == tag


def test_anything_else_is_refused_with_the_reason() -> None:
    problems: dict[str, list[object]] = {
        "1 to 200 bytes, not (0|201|202)": ["", "x" * 201, "é" * 101],
        "must not begin or end with blanks": [" orders", "orders ", "\u3000a", "a\u00a0", " "],
        "control characters": ["a\nb", "a\0", "\x85", "a\u2028b", "a\u2029b"],
        "must be valid Unicode text": ["\ud800"],
        "not (bytes|int|NoneType|list)": [b"orders", 5, None, ["orders"]],
    }
    for problem, tags in problems.items():
        for tag in tags:
            error = refused(InvalidArgument, problem, check_tag, tag)
            assert error.value is tag
            assert isinstance(error, ValueError)


def test_the_key_is_the_prefix_and_the_tag_in_braces() -> None:
    assert redis_key("issuer", "orders") == "issuer:{orders}"
    assert redis_key("a:b", "{x}%") == "a:b:{%7Bx%7D%25}" != redis_key("a:b:", "{x}%")


@given(TAGS, TAGS)
def test_different_tags_never_share_a_key(one: str, other: str) -> None:
    assert (redis_key("issuer", one) == redis_key("issuer", other)) is (one == other)


@given(TAGS)
def test_the_tag_alone_decides_the_cluster_slot(tag: str) -> None:
    # Redis Cluster hashes what stands between the first { and the first } after it, if that isn't empty.
    key = redis_key("issuer", tag)
    hashed = key[key.index("{") + 1 : key.index("}")]
    assert hashed
    assert key == f"issuer:{{{hashed}}}"


def test_a_restart_key_with_blanks_around_it_is_refused_as_its_part_could_not_be_told_apart() -> None:
    assert part_tag("orders", "a b") == "orders#a b"
    for key in ("a ", " a", " "):
        assert (
            refused(InvalidArgument, "restart key must not begin or end with blanks", part_tag, "orders", key).value
            == key
        )
