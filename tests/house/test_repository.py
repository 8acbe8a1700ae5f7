"""What a hosting site and an editor read: workflows, forms, hooks. What they run and name is there."""

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from issuer.doors.tokens import SCOPES
from tests.house.packaging.lower_bounds import lower_bounds
from tests.house.packaging.test_wheel import REPO
from tests.reference import COMMANDS

REPOSITORY = Path(__file__).resolve().parents[2]
FORMS = REPOSITORY / ".github" / "ISSUE_TEMPLATE"
PYPROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
TARGETS = set(re.findall(r"^(\w+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE))


def read(path: str) -> Any:
    return yaml.safe_load((REPOSITORY / path).read_text("utf-8"))


def text(path: str) -> str:
    return (REPOSITORY / path).read_text("utf-8")


def test_what_the_workflow_runs_is_there() -> None:
    jobs = read(".github/workflows/ci.yml")["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert any(".ci/run" in run for run in runs)
    assert (REPOSITORY / ".ci" / "run").stat().st_mode & 0o111
    targets = [target for run in runs for target in re.findall(r"make (\w+)", run)]
    assert {"check", "test", "oldest"} == set(targets) <= TARGETS


def test_the_workflow_tests_the_pythons_that_the_classifiers_name() -> None:
    matrix = read(".github/workflows/ci.yml")["jobs"]["python"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    assert matrix == [
        each[len(prefix) - 2 :] for each in PYPROJECT["project"]["classifiers"] if each.startswith(prefix)
    ]


def test_commits_are_held_to_make_lint() -> None:
    (hook,) = (hook for repo in read(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"])
    assert hook["entry"] == "make lint"
    assert "lint" in TARGETS


@pytest.mark.parametrize("form", ["bug", "feature"])
def test_a_form_is_one_that_the_site_reads(form: str) -> None:
    content = read(f".github/ISSUE_TEMPLATE/{form}.yml")
    assert {"name", "description", "body"} <= set(content)
    fields = [each for each in content["body"] if each["type"] != "markdown"]
    assert len({each["id"] for each in fields}) == len(fields)
    for each in fields:
        assert each["type"] in {"dropdown", "input", "textarea"}
        assert each["attributes"]["label"]


def test_the_form_of_a_bug_asks_for_what_a_maintainer_needs() -> None:
    fields = {each["id"]: each for each in read(".github/ISSUE_TEMPLATE/bug.yml")["body"] if "id" in each}
    labels = {each["attributes"]["label"] for each in fields.values()}
    assert {"issuer --version", "issuer doctor --json", "issuer config"} <= labels
    assert "A number was issued twice" in fields["kind"]["attributes"]["options"]
    assert "duplicate" in fields


@pytest.mark.parametrize("path", [".github/ISSUE_TEMPLATE/bug.yml", "SECURITY.md"])
def test_commands_of_the_issuer_that_are_named_are_there(path: str) -> None:
    commands = set(re.findall(r"(?:`|label: )issuer ([a-z]+)", text(path)))
    assert commands
    assert commands <= set(COMMANDS)


def test_the_page_of_security_names_the_scopes_and_leads_to_headings_that_are_there() -> None:
    page = text("SECURITY.md")
    assert f"{', '.join(f'`{scope}`' for scope in SCOPES[:3])} or `{SCOPES[3]}`" in page
    links = re.findall(r"\]\((docs/[\w/-]+\.md)(?:#([\w-]+))?\)", page)
    assert links
    for path, anchor in links:
        headings = re.findall(r"^#+ (.+)$", text(path), re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, (path, anchor)


def test_the_request_for_a_merge_names_targets_that_are_there() -> None:
    named = re.findall(r"`make (\w+)", text(".github/pull_request_template.md"))
    assert set(named) <= TARGETS


@pytest.mark.parametrize("file", ["deploy/Dockerfile", "deploy/systemd/issuer.service"])
def test_what_is_deployed_has_the_driver_of_each_store(file: str) -> None:
    extras = re.findall(r"\[([\w,]+)\]\"", text(file))[0].split(",")
    assert {"server", "postgresql", "mysql"} == set(extras) <= set(PYPROJECT["project"]["optional-dependencies"])


def test_editors_and_the_checks_agree_on_the_length_of_a_line() -> None:
    config = configparser.ConfigParser()
    config.read_string("[top]\n" + text(".editorconfig"))
    assert config.getint("*", "max_line_length") == PYPROJECT["tool"]["ruff"]["line-length"]


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
