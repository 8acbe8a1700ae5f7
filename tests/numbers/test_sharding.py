"""Layouts, shards and limits: fields that fit or are refused, keys that choose the same shard everywhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from issuer.core.supply.state import TagState
from issuer.errors import InvalidArgument, SchemeError
from issuer.numbers import limits
from issuer.numbers.sharding import ShardLayout, shard_of
from issuer_persistence.records import HIGHEST, Tag
from tests.refusals import refused


class TestLayout:
    @pytest.mark.covers("4.7")
    @given(st.integers(0, 16), st.integers(0, 46), st.data())
    def test_compose_and_decompose_are_inverse(self, shard_bits: int, app_bits: int, data: st.DataObject) -> None:
        layout = ShardLayout({"shard_bits": shard_bits, "app_bits": app_bits})
        parts = {name: data.draw(st.integers(0, most)) for name, most in layout.most.items()}
        assert layout.decompose(layout.compose(**parts)) == (parts["sequence"], parts["shard"], parts["app"])
        number = data.draw(st.integers(0, HIGHEST))
        assert layout.compose(**dict(zip(parts, layout.decompose(number), strict=True))) == number

    @pytest.mark.covers("4.7")
    def test_each_field_refuses_what_does_not_fit(self) -> None:
        layout = ShardLayout({"shard_bits": 6, "app_bits": 8})
        assert layout.most == {"sequence": 2**49 - 1, "shard": 63, "app": 255}
        fine = {"sequence": 1, "shard": 1, "app": 1}
        for field, most in layout.most.items():
            for wrong in (most + 1, -1, True, 1.0, "1", None):
                error = refused(InvalidArgument, f"^{field} must be", layout.compose, **{**fine, field: wrong})
                assert error.value == wrong

    def test_widths_that_do_not_add_up_are_refused(self) -> None:
        for shard_bits, app_bits in ((-1, 8), (6, -1), (32, 32)):
            shards = {"shard_bits": shard_bits, "app_bits": app_bits}
            assert refused(SchemeError, "", ShardLayout, shards).setting == "shards"


#: crc32 as published (123456789 is its check value), and shards of 64.
VECTORS = {"": 0, "123456789": 0xCBF43926 % 64, "alice@example.com": 41, "+43 1 58801": 53, "京": 31, "Zoë": 42}


class TestShards:
    @pytest.mark.covers("4.8")
    def test_keys_choose_the_documented_shard_by_crc32_written_out(self) -> None:
        def crc(data: bytes) -> int:
            rest = 0xFFFFFFFF
            for byte in data:
                rest ^= byte
                for _ in range(8):
                    rest = rest >> 1 ^ (0xEDB88320 if rest & 1 else 0)
            return rest ^ 0xFFFFFFFF

        for key, shard in VECTORS.items():
            assert shard_of(key, 64) == shard_of(key.encode(), 64) == crc(key.encode()) % 64 == shard, key

    def test_what_is_no_number_of_shards_or_no_text_is_refused(self) -> None:
        for shards in (0, -1, 65_537, True, 1.0):
            refused(InvalidArgument, "", shard_of, "a", shards)
        for key in (None, 5, "\ud800"):
            refused(InvalidArgument, "", shard_of, key, 64)


class TestLimits:
    def test_names_and_numbers_are_taken(self) -> None:
        names = {"int32": 2147483647, "uint32": 4294967295, "js": 9007199254740991, "int64": HIGHEST, "JS": 2**53 - 1}
        numbers: dict[int | str, int] = {1: 1, "99999": 99999, HIGHEST: HIGHEST, str(HIGHEST): HIGHEST}
        for limit, number in (*names.items(), *numbers.items()):
            assert limits.number(limit) == number, limit

    def test_others_are_refused(self) -> None:
        for limit in ("int16", "", "-1", "1.5", "٣", 0, -1, HIGHEST + 1, str(HIGHEST + 1), True, 1.5):
            assert refused(InvalidArgument, "limit must be", limits.number, limit).value == limit

    @given(st.integers(1, HIGHEST))
    def test_eighty_percent_are_exact(self, limit: int) -> None:
        border = -(-limit * 4 // 5)
        record = Tag(tag="a", max=border, step=1, limit=limit, created=0, timestamp=0, version="")
        for used, near in ((border, True), (border - 1, False)):
            state = TagState("a", "key")
            state.record = record
            assert (state.near_limit(used) is not None) == near
