"""What a program may rely on: names, and calls that can't be meant are refused."""

import asyncio
from importlib.metadata import version

import pytest

import issuer


def test_the_version_and_the_root_of_what_passes_are_public() -> None:
    assert issuer.__version__ == version("segment-issuer")
    assert issubclass(issuer.StoreUnavailable, issuer.Unavailable)
    assert issubclass(issuer.RedisUnavailable, issuer.Unavailable)
    assert {"Unavailable", "__version__"} <= set(issuer.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        issuer.nonsense  # noqa: B018 - its look-up is what is tried


@pytest.mark.parametrize("n", [1, 3, 0, 2.5, "3"])
def test_next_with_a_number_of_numbers_is_refused_and_draws_nothing(n: object) -> None:
    async def refused() -> None:
        async with issuer.aconnect(redis="none", store="memory://", scheduler=None) as ids:
            await ids.create("t")
            assert await ids.next("t") == 1
            with pytest.raises(issuer.InvalidArgument, match=r"take\(tag, n\)"):
                await ids.next("t", n)  # type: ignore[arg-type]  # as a program without types writes it
            assert await ids.next("t", None, 5.0) == 2

    asyncio.run(refused())
    with issuer.connect(redis="none", store="memory://", scheduler=None) as ids:
        ids.create("t")
        assert ids.next("t") == 1
        with pytest.raises(issuer.InvalidArgument, match=r"take\(tag, n\)"):
            ids.next("t", n)  # type: ignore[arg-type]  # as above
        assert ids.next("t", None, 5.0) == 2
