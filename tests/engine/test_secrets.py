"""No part of a login or of a parameter of a URL is shown by an error, its causes, a log, or what shows itself."""

import logging
import traceback
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import issuer
from issuer.settings import load
from issuer_persistence.urls import mask

#: Stands on both sides of whatever a parser might cut at.
MARK = "hunter2"
#: What people forget to encode, and what parsers stumble over: the last ones become a / or are bytes of no text.
CUTS = [*"#?/@:%[]&=;, \\\"'", "\n", "\x00", "%zz", "é", "\u2100", "\udcff"]
SECRETS = [*(f"{MARK}{cut}{MARK}" for cut in CUTS), *(f"12{cut}{MARK}" for cut in CUTS)]

#: Where a secret may stand in a URL of a server; {s} is its scheme.
PLACES = (
    "{s}://u:{x}@127.0.0.1:1/0",
    "{s}://:{x}@127.0.0.1:1",
    "{s}://{x}@127.0.0.1:1",
    "{s}://{x}:p@127.0.0.1:1/0",
    "{s}://u:{x}@127.0.0.1:1,[::1]:1/main/0?{x}",
    "{s}://u:{x}",
    "{s}://:{x}",
    "{s}:/u:{x}@127.0.0.1",
    "{s}:u:{x}@127.0.0.1",
    "//u:{x}@127.0.0.1",
    "u:{x}@{s}://127.0.0.1",
    "{s}://127.0.0.1:1/main?password={x}&username={x}",
    "{s}://127.0.0.1:1/0?{x}=1",
    "{s}://127.0.0.1:1/0?no_such_thing={x}",
    "{s}://127.0.0.1:1/0?socket_timeout={x}&timeoutMS={x}",
    "{s}://127.0.0.1:1/0?db={x}&tls={x}",
    "{s}://127.0.0.1:1/0?ssl_cert_reqs={x}&tlsCAFile={x}",
    "{s}://127.0.0.1:1/main/0?sentinel_password={x}&sentinel_{x}=1",
    "{s}://u:{x}@127.0.0.1:1/0?replicaSet={x}&readPreferenceTags=a:{x}&authMechanismProperties=SERVICE_NAME:{x}",
)
REDIS = ("redis", "rediss", "unix", "redis+sentinel", "rediss+cluster")
MONGO = ("mongodb", "mongodb+srv")
SQLITE = ("sqlite://u:{x}@h/a.db", "sqlite:///a.db?key={x}", "sqlite:u:{x}@h", "memory://u:{x}@h", "mongo://u:{x}@h")


def urls(scheme: str) -> Iterator[str]:
    for place in PLACES:
        for secret in SECRETS:
            # Of u:p@p and u:12,p the end is a host, and of u:12/p a name, by every reading.
            if "@" in place or not ("@" in secret or secret.startswith(("12/", "12,"))):
                yield place.format(s=scheme, x=secret)


def said(error: BaseException | None) -> str:
    """All that a program that catches the error could show of it."""
    shown = "".join(traceback.format_exception(error)) if error is not None else ""
    while error is not None:
        shown += f"{error!s} {error!r} {getattr(error, 'values', '')}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return shown


def shown_of(call: Callable[..., object], /, *arguments: Any, **options: Any) -> str:
    """Return all that the call shows, whether it returns or not."""
    try:
        return repr(call(*arguments, **options))
    except issuer.IssuerError as error:
        return said(error)


def tried(**settings: Any) -> str:
    """Return all that a program shows that connects, and then uses what it got."""
    quick: dict[str, Any] = {"timeout": 0.01, "store_timeout": 0.01, "redis_timeout": 0.01, "scheduler": None}
    shown = shown_of(issuer.connect, **quick, **settings)
    if "Error" in shown:
        return shown
    with issuer.connect(**quick, **settings) as ids:
        return shown + repr(vars(ids)) + shown_of(ids.next, "a") + shown_of(ids.recover, "a") + shown_of(ids.doctor)


@pytest.mark.parametrize("scheme", REDIS)
def test_nothing_of_a_redis_url(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for url, make in zip(urls(scheme), cycle((issuer.connect, issuer.aconnect))):
        assert MARK not in mask(url) + shown_of(make, redis=url, store="memory://", scheduler=None), ascii(url)
    assert MARK not in caplog.text


@pytest.mark.parametrize("scheme", ["issuer+http", "issuer+https"])
def test_nothing_of_the_url_of_another_issuer(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for url in urls(scheme):
        assert MARK not in mask(url) + shown_of(issuer.connect, redis="none", store=url, scheduler=None), ascii(url)
    sound = tried(redis="none", store=f"{scheme}://{MARK}%2f{MARK}@127.0.0.1:1/prefix")
    assert MARK not in sound + caplog.text
    assert f"{scheme}://127.0.0.1:1/prefix" in sound


@pytest.mark.parametrize("scheme", MONGO)
def test_nothing_of_a_mongodb_url(scheme: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for url in urls(scheme):
        assert MARK not in mask(url) + shown_of(issuer.connect, redis="none", store=url, scheduler=None), ascii(url)
    assert MARK not in caplog.text


def test_nothing_of_a_url_of_a_store_that_has_no_login() -> None:
    for form in SQLITE:
        for secret in SECRETS:
            url = form.format(x=secret)
            assert MARK not in mask(url) + tried(redis="none", store=url), ascii(url)


def test_nothing_where_the_url_is_sound_and_the_server_is_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cuts = quote("".join(CUTS[:-1]), safe="")
    where = f"{MARK}{cuts}:{cuts}{MARK}@127.0.0.1:1"
    redis, store = f"redis://{where}/0?client_name={MARK}", f"mongodb://{where}/ids?appName={MARK}"
    assert "redis://***@127.0.0.1:1/0?***" in (shown := tried(redis=redis, store="memory://"))
    assert "mongodb://***@127.0.0.1:1/ids?***" in (shown_too := tried(redis="none", store=store))
    assert MARK not in shown + shown_too + caplog.text


@pytest.mark.parametrize("name", ["redis_url", "store_url"])
def test_nothing_of_what_the_environment_and_a_settings_file_say(tmp_path: Path, name: str) -> None:
    file = tmp_path / "issuer.toml"
    for text in (form.format(s="redis", x=secret) for secret in SECRETS[: len(CUTS)] for form in PLACES[6:11:2]):
        lines = (f'{name} = "{text}"', f"{name} = {text}", f'{name} = "{text}', f"{name} = ['{text}']", f"{text} = 1")
        for line in lines:
            file.write_bytes(line.encode(errors="surrogateescape"))
            assert MARK not in shown_of(load, config=file, environ={"HOME": "/"}), ascii(line)
        for variable in (f"ISSUER_{name.upper()}", f"ISSUER_{name.upper()}S"):
            assert MARK not in shown_of(load, environ={"HOME": "/", variable: text}), ascii(text)


def test_what_is_refused_says_what_to_write() -> None:
    assert MARK not in mask(f"redis://u:12/{MARK}") + tried(redis=f"redis://u:12/{MARK}", store="memory://")
    for cut, written in {"#": "%23 for #", "?": "%3F for ?", "/": "%2F for /"}.items():
        for url in (f"redis://u:12{cut}{MARK}@127.0.0.1/0", f"mongodb://u:12{cut}{MARK}@127.0.0.1/ids"):
            if cut == "#" and url.startswith("mongodb"):
                continue  # pymongo takes it as it stands
            store = url if url.startswith("mongodb") else "memory://"
            assert written in tried(redis=url if store == "memory://" else "none", store=store)


def test_hosts_and_paths_of_a_sound_url_are_shown() -> None:
    for url, shown in {
        "redis://:p@h:6379/0": "redis://***@h:6379/0",
        "rediss+sentinel://u:p@h1:1,[::1]:2/main/0?a=x": "rediss+sentinel://***@h1:1,[::1]:2/main/0?***",
        "unix:///run/redis.sock?db=3": "unix:///run/redis.sock?***",
        "mongodb://u:p%40@h1,h2/ids?w=1": "mongodb://***@h1,h2/ids?***",
    }.items():
        assert mask(url) == shown
    for url in ("redis://h:6379/0", "sqlite:////tmp/a:b@c?#.db", "memory://x", "none"):
        assert mask(url) == url
