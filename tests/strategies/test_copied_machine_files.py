"""A directory of machine numbers that was copied, in the same boot of the machine, is believed by nobody."""

import shutil
from pathlib import Path

import pytest

import issuer
from issuer.strategies import Instance
from tests.audit import repeats

pytestmark = pytest.mark.usefixtures("patient")


def test_a_copied_directory_gives_no_machine_number_twice(redis_url: str, tmp_path: Path) -> None:
    store, folders = f"sqlite:///{tmp_path / 'ids.db'}", [tmp_path / "one", tmp_path / "two"]
    numbers: list[int] = []
    known = {"application": "shop", "port": 80, "ip": "10.0.0.1"}
    first = Instance(**known, directory=str(folders[0]))  # type: ignore[arg-type]
    with issuer.connect(redis=redis_url, store=store, instance=first, scheduler=None) as one:
        one.create("s", strategy="snowflake", options={"machine": "file"})
        numbers += one.take("s", 100)
        shutil.copytree(folders[0], folders[1])
        second = Instance(**known, directory=str(folders[1]))  # type: ignore[arg-type]
        with issuer.connect(redis=redis_url, store=store, instance=second, scheduler=None) as two:
            for _ in range(50):
                numbers += one.take("s", 100) + two.take("s", 100)
    assert repeats(numbers) == []
    # What wasn't copied is believed: the first process's number, by the next of its name.
    with issuer.connect(redis=redis_url, store=store, instance=first, scheduler=None) as again:
        shown = [again.decode("s", each).fields or {} for each in (numbers[0], *again.take("s", 3))]
    assert len({each["machine"] for each in shown}) == 1
