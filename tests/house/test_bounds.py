"""Each bound of a wait is a guard: a mutation takes it out, and a test shows that the wait ends.

A bound is `for _ in range(NAME)`, or the argument of a call in `_WAITS`. A pause is none, such as `Event.wait(seconds)`
in a loop that runs for ever.
"""

import ast
from collections.abc import Iterator

from tests.generate import GENERATED
from tests.proofs.mutate.mutations import REPOSITORY, mutations

#: Functions that wait, and the argument that says for how long: its name, or its place.
_WAITS: dict[str, str | int] = {
    "acquire": "timeout",
    "connect": "connect_timeout",
    "create_connection": "timeout",
    "get": "timeout",  # of a queue: a store's has the tag before it
    "get_message": "timeout",
    "methodcaller": "timeout",
    "read_response": "timeout",
    "timeout": 0,  # of asyncio and pymongo
    "until": 1,  # of an SQL store
    "wait": "timeout",
}

#: Bounds without a mutation, and why.
_OTHERWISE = {
    (
        "issuer/drivers/blocking/connections.py",
        "message: dict[str, Any] | None = self._pubsub.get_message(timeout=timeout)",
    ): "passed on",
    ("issuer/drivers/channel.py", "message = await self._pubsub.get_message(timeout=seconds)"): "a pause",
    ("persistence/issuer_persistence/mongodb/store.py", "with unbound(), pymongo.timeout(_INDEX_PATIENCE):"): (
        "nobody waits for this thread"
    ),
    ("persistence/issuer_persistence/sql/connections.py", "return self._deadlines.until(link, left)"): "passed on",
    ("persistence/issuer_persistence/sql/store.py", "return self._links.until(link, left)"): "passed on",
}


def _bounds(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.For(target=ast.Name("_"), iter=ast.Call(ast.Name("range"), [ast.Name(name) as bound])) if (
                name.isupper()
            ):
                yield bound
            case ast.Call(ast.Attribute(attr=name) | ast.Name(name), args, keywords) if name in _WAITS:
                given: dict[object, ast.expr] = {**dict(enumerate(args)), **{each.arg: each.value for each in keywords}}
                until = given.get(_WAITS[name])
                if until is not None and not (name == "get" and args) and ast.unparse(until) != "0":
                    yield until


def _places() -> Iterator[tuple[str, int, str]]:
    """Yield the file, the line and the text of each bound."""
    generated = {f"issuer/{each}" for each in GENERATED}
    for path in sorted([*REPOSITORY.glob("issuer/**/*.py"), *REPOSITORY.glob("persistence/**/*.py")]):
        file = path.relative_to(REPOSITORY).as_posix()
        if file not in generated and not file.startswith(("issuer/chaos/", "issuer/testing/")):
            text = path.read_text(encoding="utf-8")
            for bound in _bounds(ast.parse(text)):
                yield file, bound.lineno, text.splitlines()[bound.lineno - 1].strip()


def test_each_bound_of_a_wait_is_taken_out_by_a_mutation() -> None:
    taken_out = set[tuple[str, int]]()
    for each in mutations():
        before, _, _ = (REPOSITORY / each.file).read_text(encoding="utf-8").partition(each.old)
        first = before.count("\n") + 1
        taken_out.update((each.file, line) for line in range(first, first + each.old.count("\n") + 1))
    left = {(file, text) for file, line, text in _places() if (file, line) not in taken_out}
    assert left == set(_OTHERWISE)
