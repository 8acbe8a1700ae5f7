"""Settings: an argument or flag wins over the environment, that over the file, that over the default."""

from __future__ import annotations

import os
import re
import threading
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, overload

from issuer.errors import ConfigurationError, InvalidArgument, brief
from issuer_persistence.records import LEASE_MOST
from issuer_persistence.urls import FILE, file_path

#: Environment variables of other programs that name the store, in the order in which they are looked at.
STORE_VARIABLES = ("MONGODB_URI", "MONGO_URL")
#: The same for Redis; looked at only when a store is named, since Redis alone is no configuration.
REDIS_VARIABLE = "REDIS_URL"

DEFAULT = "default"

#: How many connections to Redis an issuer has at most. A thread or task that draws needs one; those that draw from one
#: tag at the same time share it.
REDIS_CONNECTIONS = 32

#: The most processes that serve together.
WORKERS_MOST = 256
_PORTS = 65536

#: How alike an unknown variable and one of ours must be to be taken for a misspelt one: 1 is equal. One wrong letter of
#: five makes 0.8; ISSUER_BASE_URL, of an OpenID Connect library, is 0.71 like ISSUER_STORE_URL.
_ALIKE = 0.8
#: Shorter names than this are like too many others: ISSUER_KEY is no misspelt ISSUER_KEYS.
_DISTINCT = 5


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it came from: "argument", a variable's name, a file's path, or "default"."""

    value: Any = field(repr=False)  # a URL has a password in it
    source: str


def seconds(value: Any, name: str, *, zero: bool) -> float:
    """Return a duration as a float; InvalidArgument if it is none, or negative, or 0 where that makes no sense."""
    within = not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value <= threading.TIMEOUT_MAX
    if not within or (value == 0 and not zero):
        least = "0 or more" if zero else "above 0"
        problem = f"must be a number of seconds, {least}, not {brief(value)}"
        raise InvalidArgument(problem, value=value, argument=name)
    return float(value)


def _seconds(name: str, *, zero: bool) -> Callable[[Any], float]:
    """Return what reads a duration of that name, which may be a text."""
    return lambda value: seconds(_number(value) if isinstance(value, str) else value, name, zero=zero)


def _number(text: str) -> float | str:
    """Return the number that a text is; the text itself if it is none."""
    try:
        return float(text)
    except ValueError:
        return text


def _whole(value: object) -> int:
    """Return a whole number; ConfigurationError if it is none."""
    number = int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise ConfigurationError(f"must be a whole number, not {brief(value)}")
    return number


def _url(url: Any) -> Any:
    """Return a URL, or the client or store of the caller's as it is; ConfigurationError for a URL without a scheme."""
    if isinstance(url, str) and "://" not in url:
        raise ConfigurationError("a URL needs a scheme, as in redis://, mongodb:// or sqlite:///")
    return url


def _url_or_none(url: Any) -> Any:
    return "none" if isinstance(url, str) and url.strip().lower() == "none" else _url(url)


def _as_it_is(value: Any) -> Any:
    return value


def _lease(lease: object) -> int:
    """Return the number; ConfigurationError if it isn't a whole one in its range."""
    number = int(lease) if isinstance(lease, str) and lease.isdecimal() else lease
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= LEASE_MOST:
        raise ConfigurationError(f"must be a whole number in 0..{LEASE_MOST}, not {brief(lease)}")
    return number


def _flag(value: object) -> bool:
    """Return a truth value; ConfigurationError if it is none."""
    if isinstance(value, str):
        value = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}.get(
            value.lower(), value
        )
    if not isinstance(value, bool):
        raise ConfigurationError(f"must be true or false, not {brief(value)}")
    return value


def _path(path: object) -> str:
    """Return the path of a file; ConfigurationError if it is none."""
    if not isinstance(path, (str, os.PathLike)) or isinstance(named := os.fspath(path), bytes) or "\0" in named:
        raise ConfigurationError(f"must be the path of a file, not {brief(path)}")
    return named


def _keys(keys: object) -> dict[str, bytes]:
    """Return the secrets by name; ConfigurationError if that is no table of texts. What they hold is never shown."""
    if isinstance(keys, str):
        pairs = [pair.partition("=") for pair in keys.split(",") if pair]
        if not all(equals for _, equals, _ in pairs):  # what stands there may be a secret
            raise ConfigurationError('each needs a name and a secret, as in "k1=secret,k2=secret"')
        keys = {name: secret for name, _, secret in pairs}
    if not isinstance(keys, Mapping):
        raise ConfigurationError('must be named, as in "k1=secret,k2=secret" or a table')
    found = {}
    for name, secret in keys.items():
        if not isinstance(name, str) or not name or not isinstance(secret, (str, bytes)) or not secret:
            raise ConfigurationError(
                f"key {brief(name)} has no secret: write NAME=secret, or a table of texts or bytes"
            )
        found[name] = secret.encode() if isinstance(secret, str) else secret
    return found


#: A week; about 150 bytes of Redis are taken for each key. A series is a tag of its own.
LONGEST_TTL = 604_800.0
KEYS_PER_SECOND = 100
SERIES_PER_TAG = 10_000


def _count(most: int) -> Callable[[object], int]:
    """Return what reads a whole number from 1 to the most."""

    def read(value: object) -> int:
        number = _whole(value)
        if not 1 <= number <= most:
            raise ConfigurationError(f"must be 1..{most}, not {number}")
        return number

    return read


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of HOST:PORT, an IPv6 address without its brackets; ConfigurationError if it isn't one."""
    host, colon, port = address.strip().rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare) is (bare == host) or not re.fullmatch("[0-9]{1,5}", port):
        raise ConfigurationError(f"must be HOST:PORT, as in 127.0.0.1:8000 or [::1]:8000, not {brief(address)}")
    if int(port) >= _PORTS:
        raise ConfigurationError(f"a port is 0..{_PORTS - 1}, not {port}")
    return bare, int(port)


def _address(address: object) -> str:
    """Return where to listen, "" for nowhere; ConfigurationError if it is no address."""
    if not isinstance(address, str):
        raise ConfigurationError(f"must be HOST:PORT, not {brief(address)}")
    if address.strip().lower() in ("", "none"):
        return ""
    host_and_port(address)
    return address.strip()


def _log_format(value: object) -> str:
    if value not in ("text", "json"):
        raise ConfigurationError(f"must be text or json, not {brief(value)}")
    return str(value)


def _names(names: object) -> list[str]:
    """Return the names of a list, or of a text with commas between them; ConfigurationError if that isn't one."""
    each = names.split(",") if isinstance(names, str) else names
    if not isinstance(each, (list, tuple)) or not all(isinstance(name, str) and name.strip() for name in each):
        raise ConfigurationError('must be a list of names, as in ["ids.example.com"] or "ids.example.com,ids"')
    return [name.strip() for name in each]


def _prefix(prefix: object) -> str:
    """Return the prefix if it can stand before the braces of a Redis key; ConfigurationError otherwise."""
    if (
        not isinstance(prefix, str)
        or not prefix
        or any(letter in "{}" or not letter.isprintable() for letter in prefix)
    ):
        raise ConfigurationError(f"prefix {brief(prefix)}: needs at least one printable character, and no braces")
    return prefix


@dataclass(slots=True, eq=False)
class Definition:
    """One setting, an attribute of `Settings`: its default, the function that reads a value, and its help, in Markdown.

    `unset`: the text that `issuer config` shows if it isn't set. `unit`: the things that a number counts.
    """

    default: Any
    read: Callable[[Any], Any]
    help: str
    unset: str = "none"
    unit: str = ""
    name: str = field(default="", init=False)

    def __set_name__(self, owner: type[Settings], name: str) -> None:
        self.name = name

    @overload
    def __get__(self, settings: None, owner: type[Settings]) -> Definition: ...
    @overload
    def __get__(self, settings: Settings, owner: type[Settings]) -> Setting: ...
    def __get__(self, settings: Settings | None, owner: type[Settings]) -> Definition | Setting:
        return self if settings is None else settings.named()[self.name]


@dataclass(frozen=True)
class Settings:
    """Everything that can be set from outside, in the order in which it is documented. Times are in seconds."""

    # fmt: off
    redis_url = Definition("none", _url_or_none,
        "Address of Redis: a URL with `redis://`, `rediss://`, `unix://`, `redis+sentinel://` or `redis+cluster://`. "
        "With `none`, the process works in direct mode, without Redis")
    store_url = Definition(
        None,  # an SQLite file in the home directory, see `load`
        _url,
        "Address of the store: `mongodb://`, `mongodb+srv://`, `sqlite:///path`, or `memory://` for tests. If a "
        "MongoDB URL has no database, the issuer uses the database `issuer`",
    )
    prefix = Definition("issuer", _prefix,
        "First part of all Redis keys. It must consist of printable characters, without braces")
    timeout = Definition(5.0, _seconds("timeout", zero=True),
        "Longest time that a call may wait, in seconds, 0 or more. With 0, a call gets only numbers that are in the "
        "memory of its process")
    store_timeout = Definition(3.0, _seconds("store_timeout", zero=False),
        "Longest duration of a request to the store, in seconds, above 0. If the loader of a segment does not finish "
        "within this time and one more second, Redis elects another loader. Use the same value in every process, and "
        "a value well below `timeout`")
    redis_timeout = Definition(
        1.0, _seconds("redis_timeout", zero=False), "Longest duration of a round trip to Redis, in seconds, above 0"
    )
    redis_connections = Definition(REDIS_CONNECTIONS, _count(10_000),
        "Maximum number of connections from this process to Redis, 1..10000. If all are in use, a call waits for one, "
        "within its `timeout`. Concurrent calls for the same tag share a connection. For a Redis Cluster, set a value "
        "above the number of nodes", unit="connections")
    insist = Definition(5.0, _seconds("insist", zero=True),
        "Time in seconds, 0 or more. If the store is down and no numbers are left, calls wait this long for the "
        "store. After that, calls fail at once until the store is back. Set a longer time than a failover of the "
        "store takes")
    lease = Definition(0, _lease,
        "Count of numbers of a trend tag that a process draws from Redis in advance, 0..1000000. If a tag has a "
        "`lease` of its own, that value applies", unit="numbers")
    journal = Definition("", _path,
        "File of the journal. The process appends every reservation to this file before it uses the numbers. The "
        "directory of the file must exist")
    keys = Definition({}, _keys,
        'Secret keys for scrambled tags, each with a name: `k1=...,k2=...` as a text, or the table `{k1 = "..."}` in '
        "a file. Each secret has 16 bytes or more")
    application = Definition("issuer", _as_it_is, "Name of your service in the ledger. `issuer who` shows it")
    port_number = Definition(0, _whole,
        "Port in the name of this process, 0..65535. The process leases its machine number for `snowflake` under the "
        "name `application.port.ip`, and gets the same machine number again after a restart if its name is the same")
    ip_address = Definition(
        "", _as_it_is, "IP address in the name of this process, see `port_number`", unset="this host's"
    )
    machine = Definition(-1, _whole,
        "Fixed machine number of this process for `snowflake`, 0 or more. Each process needs a different one")
    rack = Definition(
        -1, _whole, "Fixed rack number of this process for `snowflake`, 0 or more. Only for layouts with racks"
    )
    machine_files = Definition("", _path,
        "Directory for the files of machine numbers. The source `file` requires it",
        unset="the temporary directory")
    require_servers = Definition(default=False, read=_flag,
        help="Raise an error at start if no store is configured. Otherwise a container with a forgotten variable "
        "would use an SQLite file of its own, and issue numbers from 1")
    metrics = Definition(
        default=False, read=_flag, help="Add the metrics to the default registry of `prometheus_client`"
    )
    http = Definition("127.0.0.1:8000", _address,
        "Address at which `issuer serve` accepts HTTP, as `HOST:PORT`. With port 0 it uses any free port. With `none` "
        "it does not serve HTTP")
    resp = Definition("", _address, "Address at which `issuer serve` accepts the Redis protocol, as `HOST:PORT`")
    workers = Definition(1, _count(WORKERS_MOST), "Number of worker processes of `issuer serve`, 1..256")
    tokens = Definition(
        "", _path, "File of tokens. With it, each caller of `issuer serve` needs a token that is in this file"
    )
    open = Definition(
        default=False, read=_flag, help="Allow callers on other machines to use `issuer serve` without a token"
    )
    allowed_hosts = Definition([], _names,
        "Names that HTTP requests to `issuer serve` may have in the header `Host`: a list, or the text "
        "`a.example.com,b`. `*.example.com` allows all subdomains, `*` allows any name. `localhost` and IP addresses "
        "are always allowed")
    drain_delay = Definition(1.0, _seconds("drain_delay", zero=True),
        "Time in seconds, 0 or more. After SIGTERM, `/readyz` answers 503, and `issuer serve` still accepts "
        "connections for this time. Set a longer time than your load balancer needs to stop sending requests: 10 in "
        "Kubernetes")
    longest_ttl = Definition(LONGEST_TTL, _seconds("longest_ttl", zero=False),
        "Longest time in seconds, above 0, for which `issuer serve` keeps an `Idempotency-Key` and its number. A "
        "request with a longer `ttl` is rejected")
    keys_per_second = Definition(KEYS_PER_SECOND, _count(1_000_000),
        "Maximum number of new `Idempotency-Key` values per second, 1..1000000. Each token has this limit. Callers "
        "without a token share one limit. Each key needs about 150 bytes in Redis: with 100 keys per second, a day "
        "needs 1.3 GB", unit="keys")
    series_per_tag = Definition(SERIES_PER_TAG, _count(10_000_000),
        "Maximum number of series of a keyed tag, 1..10000000. If a tag has reached this number, `issuer serve` "
        "rejects requests with a new `restart_key`", unit="series")
    log_format = Definition("text", _log_format, "Format of the logs of `issuer serve`: `text` or `json`")
    # fmt: on

    _values: Mapping[str, Setting]

    @property
    def embedded(self) -> bool:
        """Whether neither Redis nor a store is named: then an SQLite file of this machine is the store.

        Tags are made at their first use there.
        """
        return self.redis_url.source == DEFAULT and self.store_url.source == DEFAULT

    def named(self) -> dict[str, Setting]:
        """All of them by name, in the order in which they are documented."""
        return dict(self._values)


#: Each setting by its name.
DEFINITIONS: Mapping[str, Definition] = {
    name: each for name, each in vars(Settings).items() if isinstance(each, Definition)
}


def load(
    arguments: Mapping[str, Any] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Put the settings together. `arguments` that are None count as not given.

    The file is `config`, or $ISSUER_CONFIG, or ./issuer.toml, or $XDG_CONFIG_HOME/issuer/issuer.toml: the first that is
    there; one that was named has to be. Relative paths in it are relative to it. Raises ConfigurationError for an
    unknown key, a missing file, a bad value, a variable that is empty, and a default that `require_servers` forbids.
    """
    environment = os.environ if environ is None else environ
    names = list(DEFINITIONS)
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    _check_misspelt(environment, {*given, "config"} if config else {*given})
    from_file, path = _file(config, environment, names)
    found: dict[str, Setting] = {}
    for name in names:
        variable = f"ISSUER_{name.upper()}"
        if name in given:
            found[name] = Setting(given[name], "argument")
        elif variable in environment:
            found[name] = Setting(_filled(variable, environment[variable]), variable)
        elif path is not None and name in from_file:
            found[name] = Setting(_beside(path, name, from_file[name]), str(path))
    if "store_url" not in found:
        for variable in STORE_VARIABLES:
            if variable in environment:
                found["store_url"] = Setting(_filled(variable, environment[variable]), variable)
                break
    if "store_url" in found and "redis_url" not in found and REDIS_VARIABLE in environment:
        found["redis_url"] = Setting(_filled(REDIS_VARIABLE, environment[REDIS_VARIABLE]), REDIS_VARIABLE)
    defaults = {name: definition.default for name, definition in DEFINITIONS.items()}
    defaults["store_url"] = f"{FILE}{_data_home(environment) / 'issuer' / 'issuer.db'}"
    return _checked({name: found.get(name, Setting(defaults[name], DEFAULT)) for name in names})


def _checked(found: Mapping[str, Setting]) -> Settings:
    checked: dict[str, Setting] = {}
    for name, setting in found.items():
        try:
            checked[name] = Setting(DEFINITIONS[name].read(setting.value), setting.source)
        except (ValueError, ConfigurationError) as error:
            raise ConfigurationError(f"{name} from {setting.source}: {error}") from error
    done = Settings(checked)
    if done.store_url.source == DEFAULT:
        _check_default(done)
    return done


def _check_default(settings: Settings) -> None:
    """Refuse the default store where it can't be meant: each machine would count from 1 in a file of its own."""
    way_out = "Configure the store: --store, ISSUER_STORE_URL or store_url in a file"
    if settings.redis_url.value != "none":
        raise ConfigurationError(
            f"Redis is configured ({settings.redis_url.source}), but no store: two machines, each with its own SQLite "
            f"file, would issue the same numbers after Redis is emptied. {way_out}"
        )
    if settings.redis_url.source != DEFAULT:
        raise ConfigurationError(
            f"Redis is none ({settings.redis_url.source}), so all numbers come from the store, but no store is "
            f"configured. {way_out}. If you configure neither, numbers come from {settings.store_url.value}"
        )
    if settings.require_servers.value:
        raise ConfigurationError(
            f"no store is configured, and require_servers ({settings.require_servers.source}) forbids the default, a "
            f"file that only this machine has ({settings.store_url.value}). {way_out}"
        )


def _filled(variable: str, value: str) -> str:
    """Return the value; ConfigurationError if it is empty, as compose's `${VAR:-}` makes it.

    Taken for a variable that isn't there, it would have two containers count 1, 2, ... each.
    """
    if not value.strip():
        raise ConfigurationError(f"{variable} is empty: set a value, or remove the variable")
    return value


def _beside(path: Path, name: str, value: object) -> object:
    """Return a value of the settings file: a relative one is relative to the file, not to the current directory."""
    if not isinstance(value, str) or not value:
        return value
    if DEFINITIONS[name].read is _path:
        return str(path.absolute().parent / value)
    if name == "store_url" and (file := file_path(value)):
        return f"{FILE}{path.absolute().parent / file}"
    return value


def _check_misspelt(environment: Mapping[str, str], given: Collection[str]) -> None:
    """Refuse a variable that looks like a misspelt one of ours: with it each machine would count from 1 for itself.

    Only those are looked at that would be read: the setting is none of `given`, and has no variable that is right.
    Other programs have ISSUER_ variables as well: what looks like none of ours is theirs.
    """
    ours = {f"ISSUER_{name.upper()}": name for name in (*DEFINITIONS, "config")}
    wanted = [name for variable, name in ours.items() if name not in given and variable not in environment]
    # Besides the variables, the names under which `connect` and the command line take the two addresses.
    likely = {each: name for name in wanted for each in (name, name.removesuffix("_url")) if len(each) >= _DISTINCT}
    unknown = [each for each in sorted(environment.keys() - ours.keys()) if each.startswith("ISSUER_")]
    for variable in unknown:
        near = get_close_matches(variable[len("ISSUER_") :].lower(), likely, n=1, cutoff=_ALIKE)
        if near:
            meant = f"ISSUER_{likely[near[0]].upper()}"
            raise ConfigurationError(
                f"unknown variable {variable}: correct it if {meant} is meant. If it belongs to another program, set "
                f"{meant} as well, or pass that setting as an argument"
            )


def _file(
    config: str | os.PathLike[str] | None, environment: Mapping[str, str], names: list[str]
) -> tuple[dict[str, Any], Path | None]:
    named = config or (_filled("ISSUER_CONFIG", environment["ISSUER_CONFIG"]) if "ISSUER_CONFIG" in environment else "")
    home = Path(environment.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for candidate in [Path(named)] if named else [Path("issuer.toml"), home / "issuer" / "issuer.toml"]:
        try:
            text = candidate.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            if named:
                raise ConfigurationError(f"there is no settings file {candidate}") from error
            continue
        except OSError as error:
            raise ConfigurationError(f"settings file {candidate}: {error}") from error
        except UnicodeDecodeError as error:  # not chained: it holds the whole file
            raise ConfigurationError(f"settings file {candidate}: {error}") from None
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"settings file {candidate}: {error}") from error
        unknown = sorted(set(content) - set(names))
        if unknown:
            raise ConfigurationError(
                f"settings file {candidate}: unknown key {brief(unknown[0])}; the keys are {', '.join(names)}"
            )
        return content, candidate
    return {}, None


def _data_home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
