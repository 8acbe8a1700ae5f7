"""Lets all code of a process use a double: code that uses the default issuers, and code that connects by settings."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import wraps
from inspect import getattr_static, iscoroutinefunction
from types import TracebackType
from typing import Any, TypeVar, cast

import issuer
from issuer.forks import no_fork
from issuer.testing.double import Double

#: A function or a class.
T = TypeVar("T")

#: The doubles of the overrides that have not ended, oldest first. The newest one is used.
_open: list[Double] = []
#: For each of them, what restores the variables and the default issuers that were there before it.
_earlier: list[ExitStack] = []

#: Methods of a test class whose names begin so are tests.
_TEST = "test"


class override:  # noqa: N801 - used as a decorator, like those of unittest.mock
    """Use a new double instead of the real servers: in a `with` block, in a function, or in the tests of a class.

        with override() as double:
            issuer.default().create("orders")
            issuer.next("orders")  # 1

    Meanwhile, the default issuers are those of the double. `issuer.connect` and `issuer.aconnect` without arguments
    connect to the double, also in programs that the test starts: the variables ISSUER_REDIS_URL and ISSUER_STORE_URL
    are set, and all other settings are hidden. `async with` also closes the AsyncIssuer of the running loop.

    As a decorator it takes a function, a coroutine function or a class. In a class, each test has a double of its own.
    In a `unittest.TestCase`, `self.issuer_double` is the double. If `setUpClass` (Django: `setUpTestData`) creates
    tags, all tests of the class share one double, as they share the rows of their database.
    """

    def __init__(self, **settings: Any) -> None:
        """Prepare. `settings`: arguments of `issuer.connect`, for the issuers of the double."""
        self._settings = settings
        self._doubles: list[Double] = []

    def __enter__(self) -> Double:
        double = Double(**self._settings).__enter__()
        self._doubles.append(double)
        _begin(double)
        return double

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        double = self._doubles.pop()
        _end(double)
        double.close()

    async def __aenter__(self) -> Double:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        try:
            await self._doubles[-1].aclose()
        finally:
            self.__exit__(kind, error, at)

    def __call__(self, tests: T) -> T:
        """Use a new double in each call of a function, or in each test of a class."""
        decorated: Any = tests
        if not isinstance(decorated, type):
            return cast("T", _in_function(decorated, self._settings))
        (_in_test_case if issubclass(decorated, unittest.TestCase) else _in_class)(decorated, self._settings)
        return tests


def _begin(double: Double) -> None:
    with no_fork(), ExitStack() as earlier:  # another thread may begin or end an override
        before = _variables()
        earlier.callback(_set_variables, before)
        _set_variables(double.environment)
        earlier.enter_context(issuer.set_default(lambda: double.ids))
        earlier.enter_context(issuer.set_adefault(lambda: double.aids))
        _open.append(double)
        _earlier.append(earlier.pop_all())


def _end(double: Double) -> None:
    """Let the process use the newest of the other doubles, or what it used before the first one."""
    with no_fork():
        at = _open.index(double)
        _open.remove(double)
        if at == len(_open):
            _earlier.pop().close()
        else:
            del _earlier[at + 1]  # the double above this one now restores what was before this one


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("ISSUER_")}


def _set_variables(variables: Mapping[str, str]) -> None:
    """Replace all variables of the issuer. In no moment are there none: a thread that connects would use a file."""
    os.environ.update(variables)
    for name in _variables().keys() - variables.keys():
        os.environ.pop(name, None)


def _in_function(function: Callable[..., Any], settings: dict[str, Any]) -> Callable[..., Any]:
    if iscoroutinefunction(function):

        @wraps(function)
        async def awaited(*args: Any, **options: Any) -> Any:
            async with override(**settings):
                return await function(*args, **options)

        return awaited

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        with override(**settings):
            return function(*args, **options)

    return called


def _in_class(tests: Any, settings: dict[str, Any]) -> None:
    for name in dir(tests):  # also the inherited ones
        method = getattr_static(tests, name)
        if not name.startswith(_TEST):
            continue
        if isinstance(method, (staticmethod, classmethod)):
            setattr(tests, name, type(method)(_in_function(method.__func__, settings)))
        elif callable(method):
            setattr(tests, name, _in_function(method, settings))


def _in_test_case(tests: Any, settings: dict[str, Any]) -> None:
    set_up_class, set_up = tests.setUpClass.__func__, tests.setUp

    def in_class(cls: Any) -> None:
        cls.issuer_double = cls.enterClassContext(override(**settings))
        set_up_class(cls)

    def in_test(test: Any) -> None:
        if not test.issuer_double.has_tags():
            test.issuer_double = test.enterContext(override(**settings))
        set_up(test)

    tests.setUpClass = classmethod(in_class)
    tests.setUp = in_test
