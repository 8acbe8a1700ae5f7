"""The constraints that `make oldest` installs by."""

import tomllib

import pytest

from tests.house.packaging.lower_bounds import lower_bounds
from tests.house.packaging.test_wheel import REPO


def test_each_library_is_held_at_the_oldest_version_that_is_admitted() -> None:
    project = {
        "dependencies": ["redis[hiredis]>=8.0,<9", "click >= 8.2"],
        "optional-dependencies": {"server": ["uvloop>=0.21,<1; platform_system != 'Windows'", "click >= 8.2"]},
    }
    assert list(lower_bounds(project)) == ["click==8.2", "redis==8.0", "uvloop==0.21"]
    with pytest.raises(ValueError, match="'redis' has no lower bound"):
        list(lower_bounds({"dependencies": ["redis"]}))


def test_each_library_of_ours_has_a_lower_bound() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))["project"]
    assert len(list(lower_bounds(project))) >= len(project["dependencies"])
