"""Tokens: which there are, what each may do and how often, and that none is ever shown."""

import copy
import hashlib
import logging
import os
import pickle
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from issuer.cli.exits import code_of
from issuer.doors.access import Access, Caller
from issuer.doors.rates import RateBuckets
from issuer.doors.tokens import PREFIX, SCOPES, Scope, line_for, new_token
from issuer.errors import ConfigurationError, Forbidden, InvalidArgument, TooManyRequests, Unauthenticated, Unavailable
from issuer.views import view
from tests.clocks import Clock
from tests.refusals import refused


class Tokens:
    """A file of tokens, and the doorkeeper that reads it, on a clock of the test's."""

    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.wall = path, Clock(), Clock(1.7e9)
        self.lines: dict[str, str] = {}

    def add(self, name: str, scopes: list[Scope], tags: list[str], rate: float | None = None) -> str:
        token = new_token()
        self.lines[name] = line_for(token, name, scopes, tags, rate)
        self.write()
        return token

    def write(self, content: str | None = None) -> None:
        """Put the lines, or this, in place of the file."""
        new = self.path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text("\n".join(self.lines.values()) if content is None else content)
        new.rename(self.path)

    def caller(self, name: str, scopes: list[Scope], tags: list[str], rate: float | None = None) -> Caller:
        """Return the caller of a new token, as a new doorkeeper sees it."""
        token = self.add(name, scopes, tags, rate)
        return self.access().identify(token)

    def access(self) -> Access:
        return Access(self.path, clock=self.clock, wall=self.wall)


def looked(*access: Access) -> None:
    """Let each look at the file as often as a change takes."""
    for each in access * 2:
        each.look()


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.toml")


@pytest.mark.parametrize("has", SCOPES)
def test_a_token_may_do_what_its_scopes_say_and_admin_all(tokens: Tokens, has: Scope) -> None:
    token = tokens.add("a", [has], ["orders"])
    caller = tokens.access().identify(token)
    assert caller.name == "a"
    for scope in SCOPES:
        allowed = has in (scope, "admin")
        assert caller.may(scope, "orders") is allowed
        if allowed:
            caller.need(scope, "orders")
            continue
        error = refused(Forbidden, "", caller.need, scope, "orders")
        assert (error.code, error.caller, error.scope, error.tag) == ("forbidden", "a", scope, "orders")
        assert f"token 'a' has no scope {scope}" in str(error)
    # Of several scopes one is enough: what may be looked at may be peeked at, and so may what is drawn from.
    either: tuple[Scope, ...] = ("reserve", "read") if has == "reserve" else ("issue", "read")
    assert caller.may(either, "orders")
    caller.need(either, "orders")


def test_of_several_scopes_none_of_which_it_has_all_are_named(tokens: Tokens) -> None:
    caller = tokens.caller("a", ["read"], ["*"])
    refused(Forbidden, "no scope issue or admin", caller.need, ("issue", "admin"), "orders")


def test_a_token_is_for_the_tags_that_a_pattern_of_it_fits_letter_by_letter(tokens: Tokens) -> None:
    patterns = ["orders", "invoice-*", "a b {c}*", "x[12]", "?!", "line\n*", 'quo"te\\*', "Ж*😀", "\x7f"]
    caller = tokens.caller("a", ["issue"], patterns)
    fit = [
        "orders", "invoice-", "invoice-2026", "a b {c}", "a b {c} d", "x1", "x2", "x[12]", "1!", "line\nx",
        'quo"te\\', "Ж 😀",
    ]  # fmt: skip
    for tag in [*fit, "\x7f"]:
        assert caller.may("issue", tag), tag
    unfit = [
        "order", "orders2", " orders", "Orders", "ORDERS", "a b c", "a b {d}", "x3", "x[13]", "!", "orders\n", "ж😀",
    ]  # fmt: skip
    for tag in [*unfit, "", "\x7f\x7f"]:
        assert not caller.may("issue", tag), tag
        refused(Forbidden, "is not valid for tag", caller.need, "issue", tag)
    # What is about all tags takes the pattern for all.
    refused(Forbidden, "is not valid for all tags", caller.need, "issue")
    assert not caller.may("issue")
    for every in (["*"], ["orders", "**"]):
        everybody = tokens.caller("b", ["issue"], every)
        everybody.need("issue")
        assert everybody.may("issue", "whatever it is")


def test_no_token_an_empty_one_and_a_wrong_one_are_refused(tokens: Tokens) -> None:
    token = tokens.add("a", ["issue"], ["*"])
    access = tokens.access()
    assert not access.is_open
    wrong = [token[:-1], token + "=", token.upper(), f" {token}", new_token(), "\udcff", "ü", "x" * 100_000]
    for sent in (None, "", *wrong):
        error = refused(Unauthenticated, "", access.identify, sent)
        assert error.values == {"tag": None}
        assert not sent or sent not in str(error)
    # The hash that the file shows opens nothing.
    refused(Unauthenticated, "", access.identify, tokens.lines["a"].split('"')[1])
    assert access.identify(token).name == "a"


def test_the_time_that_a_token_takes_says_nothing_of_which_one_it_is_nor_how_much_of_it_is_right(
    tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = [tokens.add(name, ["issue"], ["*"]) for name in "abc"]
    access = tokens.access()
    compared: list[tuple[bytes, bytes]] = []

    def constant(ours: bytes, theirs: bytes) -> bool:
        compared.append((ours, theirs))
        return ours == theirs

    monkeypatch.setattr("hmac.compare_digest", constant)
    for token in [*known, known[0][:-1] + "?", new_token()]:
        with suppress(Unauthenticated):
            access.identify(token)
        # Each line's hash, in a time that doesn't depend on what was sent, whichever is the right one.
        ours, theirs = zip(*compared, strict=True)
        assert len(set(ours)) == 3
        assert set(theirs) == {hashlib.sha256(token.encode()).digest()}
        compared.clear()


def test_without_a_file_everybody_may_do_everything_with_or_without_a_token() -> None:
    access = Access(None)
    assert access.is_open
    for sent in (None, "", "whatever"):
        caller = access.identify(sent)
        assert caller.name == ""
        for scope in SCOPES:
            caller.need(scope, "orders")
            caller.need(scope)


def test_an_empty_file_lets_nobody_in(tokens: Tokens) -> None:
    token = new_token()
    for content in ("", "\n# nobody yet\n"):
        tokens.write(content)
        refused(Unauthenticated, "", tokens.access().identify, token)
    refused(Unauthenticated, "", tokens.access().identify, None)


def test_the_file_is_read_again_when_it_has_changed(tokens: Tokens) -> None:
    old = tokens.add("old", ["issue"], ["*"])
    access = tokens.access()
    new = tokens.add("new", ["issue"], ["*"])
    looked(access)
    assert {access.identify(each).name for each in (old, new)} == {"old", "new"}
    # Revoked; a caller that stays connected is identified again, and then it is out.
    del tokens.lines["old"]
    tokens.write()
    looked(access)
    refused(Unauthenticated, "", access.identify, old)
    # Narrowed.
    tokens.lines["new"] = line_for(new, "new", ["read"], ["orders"])
    tokens.write()
    looked(access)
    assert not access.identify(new).may("issue", "orders")
    # Also if it was written in place, with as many letters, and its time put back.
    status = tokens.path.stat()
    with tokens.path.open("r+") as file:
        file.write(tokens.lines["new"].replace("orders", "ORDERS"))
    os.utime(tokens.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert tokens.path.stat().st_size == status.st_size
    looked(access)
    assert access.identify(new).may("read", "ORDERS")


def test_a_request_looks_at_no_file(tokens: Tokens, caplog: pytest.LogCaptureFixture) -> None:
    token = tokens.add("a", ["issue"], ["*"])
    access = tokens.access()
    tokens.path.unlink()
    tokens.clock.now += 1000
    assert access.identify(token).name == "a"
    assert not caplog.records
    access.look()
    assert len(caplog.records) == 1
    assert access.identify(token).name == "a"


def test_a_file_that_is_written_in_place_is_taken_when_it_is_whole(tokens: Tokens) -> None:
    first, second = (tokens.add(name, ["issue"], ["*"]) for name in ("a", "b"))
    access = tokens.access()
    content = tokens.path.read_text()
    with tokens.path.open("w") as file:
        for piece in (content[:20], content[20 : content.index("\n") + 1], content[content.index("\n") + 1 :]):
            access.look()  # of nothing, of what is no TOML, and of the first line alone
            assert [access.identify(each).name for each in (first, second)] == ["a", "b"]
            file.write(piece)
            file.flush()
    looked(access)
    assert [access.identify(each).name for each in (first, second)] == ["a", "b"]


@pytest.mark.parametrize("content", ["a = {", "a = 5", None], ids=["no TOML", "no token", "gone"])
def test_a_file_that_cannot_be_used_leaves_the_last_good_one_in_force_and_is_told_once(
    tokens: Tokens, caplog: pytest.LogCaptureFixture, content: str | None
) -> None:
    token = tokens.add("a", ["issue"], ["*"])
    access = tokens.access()
    if content is None:
        tokens.path.unlink()
    else:
        tokens.write(content)
    for _ in range(3):
        looked(access)
        assert access.identify(token).name == "a"
    (told,) = caplog.records
    assert told.levelno == logging.ERROR
    assert str(tokens.path) in told.getMessage()
    assert "stay valid" in told.getMessage()
    tokens.lines.clear()
    other = tokens.add("b", ["issue"], ["*"])
    looked(access)
    assert access.identify(other).name == "b"
    refused(Unauthenticated, "", access.identify, token)


def test_all_processes_go_by_what_one_of_them_has_read(tokens: Tokens) -> None:
    old = tokens.add("old", ["issue"], ["*"])
    first = tokens.access()
    # As after forks: each has its own of what the first has, and they share what is shared.
    second, late = copy.copy(first), copy.copy(first)
    tokens.lines.clear()
    new = tokens.add("new", ["issue"], ["*"])
    looked(first)
    tokens.write("new = {")
    looked(second, late, first)
    for access in (first, second, late):
        assert access.identify(new).name == "new"
        refused(Unauthenticated, "", access.identify, old)


def test_a_token_may_have_several_hashes_and_an_end(tokens: Tokens) -> None:
    mine, next_one, other = new_token(), new_token(), new_token()
    hashes = [line_for(each, "a", ["issue"], ["*"]).split('"')[1] for each in (mine, next_one)]
    tokens.lines = {
        "a": f'a = {{ hash = {hashes}, scopes = ["issue"], tags = ["*"], rate = 2 }}'.replace("'", '"'),
        "b": line_for(other, "b", ["issue"], ["*"])[:-2] + ", expires = 2023-11-14T23:13:20+01:00 }",
    }
    tokens.write()
    access = tokens.access()
    # Both are one: they share a rate.
    for each in (mine, next_one):
        assert access.identify(each).name == "a"
        access.identify(each).need("issue", "orders")
    refused(TooManyRequests, "", access.identify(mine).need, "issue", "orders")
    refused(Unauthenticated, "", access.identify, other)
    tokens.lines["b"] = tokens.lines["b"].replace(":20+", ":21+")
    tokens.write()
    looked(access)
    access.identify(other).need("issue", "orders")
    tokens.wall.now += 1
    access.look()
    refused(Unauthenticated, "token 'b' has expired", access.identify, other)


GOOD = f'hash = "sha256:{"0" * 64}", scopes = ["issue"], tags = ["*"]'
SECRET = "issuer_this-is-a-secret-0123456789"


def line(old: str = "", new: str = "", more: str = "") -> str:
    """Return a good line with one thing that isn't."""
    assert old in GOOD
    return f"b = {{ {GOOD.replace(old, new) if old else GOOD}{more} }}"


#: What stands in the third line of a file, and what is said of it.
WRONG = [
    ("b = {", "not valid TOML"),
    (f'b = "{SECRET}', "not valid TOML"),
    (f'b = "{SECRET}"', "a token needs hash, scopes, tags"),
    (f'b = {{ token = "{SECRET}" }}', "a token needs hash, scopes, tags"),
    (line(more=f', "{SECRET}" = 1'), "a token needs hash, scopes, tags"),
    ('b = { scopes = ["issue"], tags = ["*"] }', "a token needs hash, scopes, tags"),
    (f'"{SECRET}" = {{ {GOOD} }}', "name has 1 to 64 letters"),
    (f'"b c" = {{ {GOOD} }}', "name has 1 to 64 letters"),
    (line(f"sha256:{'0' * 64}", SECRET), "hash must be "),
    (line("0" * 64, "0" * 63), "hash must be "),
    (line("0" * 64, "G" * 64), "hash must be "),
    (line("issue", SECRET), "scopes must be a list with one or more of read, issue, reserve, admin"),
    (line('"issue"', ""), "scopes must be a list"),
    (line('"issue"', "[]"), "scopes must be a list"),
    (line('["issue"]', '"issue"'), "scopes must be a list"),
    (line('"*"', ""), "tags must be a list"),
    (line('"*"', '""'), "tags must be a list"),
    (line('["*"]', '"*"'), "tags must be a list"),
    (line(f'"sha256:{"0" * 64}"', "[]"), "hash must be "),
    (line(f'"sha256:{"0" * 64}"', f'["sha256:{"0" * 64}", "sha256:{"0" * 64}"]'), "hash must be "),
    *(
        (line(more=f", expires = {when}"), "expires must be a date and time with a time zone")
        for when in ("2027-01-31", "2027-01-31T00:00:00", '"2027-01-31T00:00:00Z"', "1")
    ),
    *((line(more=f", rate = {rate}"), "must be a number above 0") for rate in ("0", "-1", "true", "nan", "inf", '"1"')),
    (f"b = {{ {GOOD} }}\nc = {{ {GOOD} }}", "token 'b' has the same hash"),
]


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_a_file_with_a_fault_is_refused_at_the_start_with_its_line_and_without_what_stands_there(
    tokens: Tokens, line: str, said: str
) -> None:
    tokens.lines["first"] = f"# first\n{line_for(new_token(), 'first', ['issue'], ['*'])}"
    tokens.write("\n".join([tokens.lines["first"], line, ""]))
    error = refused(ConfigurationError, said, tokens.access)
    at = 4 if "same hash" in said else 3
    assert f"tokens file {tokens.path}, line {at}: " in str(error) or "TOML" in said
    assert "secret" not in str(error) + repr(error) + str(error.__cause__)


def test_a_file_that_is_not_there_or_no_text_is_refused_at_the_start(tokens: Tokens, tmp_path: Path) -> None:
    refused(ConfigurationError, r"tokens file .*tokens\.toml: No such file", tokens.access)
    refused(ConfigurationError, "tokens file .*: Is a directory", Access, tmp_path)
    tokens.path.write_bytes(b"# good\n# \xff\n")
    refused(ConfigurationError, r"line 2: not valid UTF-8", tokens.access)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, 0), (0o640, 0), (0o644, 0), (0o660, 1), (0o602, 1)])
def test_a_file_that_others_may_write_is_warned_of(
    tokens: Tokens, caplog: pytest.LogCaptureFixture, mode: int, warned: int
) -> None:
    token = tokens.add("a", ["issue"], ["*"])
    tokens.path.chmod(mode)
    assert tokens.access().identify(token).name == "a"
    assert len(caplog.records) == warned
    assert all(record.levelno == logging.WARNING and "chmod go-w" in record.getMessage() for record in caplog.records)


def test_a_token_has_as_many_requests_a_second_as_its_rate_and_is_told_when_there_will_be_one(tokens: Tokens) -> None:
    token, other = (tokens.add(name, ["issue"], ["orders"], rate=4) for name in ("a", "b"))
    access = tokens.access()
    caller = access.identify(token)

    def served() -> int:
        count = 0
        while True:
            try:
                access.identify(token).need("issue", "orders")
            except TooManyRequests:
                return count
            count += 1

    assert served() == 4  # at most those of one second at once, however long none came
    error = refused(Unavailable, "", caller.need, "issue", "orders")
    assert (error.code, code_of(error)) == ("too_many_requests", 5)
    assert error.retry_after == pytest.approx(0.25)
    tokens.clock.now += 0.5
    assert served() == 2
    tokens.clock.now += 1000
    assert served() == 4
    access.identify(other).need("issue", "orders")  # each token has its own
    # What is refused counts, too; what is only looked up doesn't.
    tokens.clock.now += 0.25
    assert caller.may("issue", "orders")
    refused(Forbidden, "", caller.need, "admin", "orders")
    assert served() == 0
    # The file being read again gives a token nothing back, nor does another token under its name.
    token = tokens.add("a", ["issue"], ["*"], rate=4)
    looked(access)
    assert served() == 0
    tokens.clock.now += 0.25
    assert served() == 1


def test_a_rate_counts_numbers_and_refuses_what_it_never_grants(tokens: Tokens) -> None:
    caller = tokens.caller("a", ["issue"], ["*"], rate=10)
    caller.need("issue", "orders")
    caller.spend(8, "orders")
    caller.spend(1, "orders")
    caller.need("issue", "orders")
    error = refused(TooManyRequests, "", caller.spend, 4, "orders")
    assert error.retry_after == pytest.approx(0.2)
    refused(InvalidArgument, "may draw up to 10 numbers at once by its rate, not 11", caller.spend, 11, "orders")
    tokens.clock.now += 0.5
    granted, problem = caller.need_some("issue", "orders", 100)
    assert (granted, isinstance(problem, TooManyRequests)) == (7, True)
    tokens.clock.now += 1.0
    assert caller.need_some("issue", "orders", 10) == (10, None)


def test_a_rate_below_one_grants_one_call_at_once(tokens: Tokens) -> None:
    tokens.clock.now = 0.5  # of a machine that was started just now
    caller = tokens.caller("a", ["issue"], ["*"], rate=0.5)
    caller.need("issue", "orders")
    error = refused(TooManyRequests, "", caller.need, "issue", "orders")
    assert error.retry_after == pytest.approx(2.0)


def test_tokens_and_hashes_stand_in_no_repr_no_error_and_no_log(
    tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    token = tokens.add("a", ["read"], ["orders"], rate=2)
    tokens.path.chmod(0o644)
    access = tokens.access()
    caller = access.identify(token)
    errors: list[Exception] = [
        refused(Forbidden, "", caller.need, *each) for each in (("issue", "orders"), ("read", "x"))
    ]
    errors.append(refused(TooManyRequests, "", caller.need, "read", "orders"))
    errors.append(refused(Unauthenticated, "", access.identify, token + "x"))
    tokens.write(tokens.lines["a"] + "\nx")
    access.identify(token)
    told = [repr(access), repr(caller), str(access), str(caller), caplog.text]
    for error in errors:
        told += [str(error), repr(error), repr(view(error)), repr(vars(error)), repr(error.__cause__)]
    digest = tokens.lines["a"].split('"')[1].partition(":")[2]
    for text in told:
        assert token not in text
        assert token.removeprefix(PREFIX) not in text
        assert digest not in text


def test_errors_of_access_are_copied_and_pickled_whole(tokens: Tokens) -> None:
    caller = tokens.caller("a", ["read"], ["orders"])
    error = refused(Forbidden, "", caller.need, "issue", "orders")
    for made in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301 - our own
        assert (str(made), made.values) == (str(error), error.values)


def test_a_line_that_would_not_be_read_is_not_made() -> None:
    for name, scopes, tags, rate, said in [
        ("a b", ["issue"], ["*"], None, "name has"),
        (new_token(), ["issue"], ["*"], None, "name has"),
        ("a", [], ["*"], None, "scopes must be"),
        ("a", ["issue"], [], None, "tags must be"),
        ("a", ["issue"], [""], None, "tags must be"),
        ("a", ["issue"], ["*"], 0.0, "must be a number above 0"),
        ("a", ["issue"], ["*"], float("inf"), "must be a number above 0"),
        ("a", ["issue"], ["\udcff"], None, "in UTF-8"),
    ]:
        refused(InvalidArgument, said, line_for, new_token(), name, scopes, tags, rate)


@pytest.mark.parametrize("rate", [0.5, 1.0, 1000.0, 1e6, 123456.75, 1e17])
def test_a_line_is_ascii_and_says_the_rate_exactly(tokens: Tokens, rate: float) -> None:
    tokens.add("a", ["issue"], ["Ж"], rate)
    assert tokens.lines["a"].isascii()
    assert float(tokens.lines["a"].rpartition("rate = ")[2].removesuffix(" }")) == rate
    tokens.access()


def test_tokens_are_256_bits_that_never_come_twice() -> None:
    made = {new_token() for _ in range(1000)}
    assert len(made) == 1000
    assert all(each.startswith(PREFIX) and len(each) == len(PREFIX) + 43 for each in made)


def test_a_process_that_stands_still_with_a_lock_stops_no_other() -> None:
    """As one that was stopped by a debugger or the system: the others count without the lock."""
    rates = RateBuckets()
    bucket = rates.bucket("a", 10.0)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            with rates.locked(bucket._place):
                os.write(writing, b"held")
                signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(reading, 4) == b"held"
        taking = threading.Thread(target=bucket.take, daemon=True)
        taking.start()
        taking.join(20)
        assert not taking.is_alive()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)
