"""The settings: their definitions, and where values come from: arguments, else environment, else file, else default."""

from __future__ import annotations

import os
import re
import shlex
import threading
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from issuer.errors import ConfigurationError, InvalidArgument, brief
from issuer_persistence.opening import file_path
from issuer_persistence.records import LEASE_MOST

T = TypeVar("T")

#: Environment variables in which other programs expect the URL of the store, in order of priority.
STORE_VARIABLES = ("MONGODB_URI", "MONGO_URL")
#: Environment variable in which other programs expect the URL of Redis. The issuer uses the variable only if a store is
#: configured and no other setting gives the URL of Redis.
REDIS_VARIABLE = "REDIS_URL"

DEFAULT = "default"

#: Default maximum number of connections from a process to Redis. A draw needs a connection, but concurrent draws of one
#: tag share a connection.
REDIS_CONNECTIONS = 32

#: The calls of other servers that `issuer serve` can answer. `leaf:exact` uses tags with a dot by their full name.
COMPAT = ("leaf", "leaf:exact", "tinyid", "leaf-go")

#: Maximum number of worker processes.
WORKERS_MOST = 256
_PORTS = 65536

#: What the address of a Unix socket begins with.
UNIX = "unix:"
#: Maximum number of bytes in the path of a Unix socket. Linux has room for one more, macOS for 104 bytes in all.
_UNIX_MOST = 103

#: Time in seconds. Redis elects one process to load the next segment. If that process takes longer than the store's
#: timeout plus this time, Redis elects another process.
GRACE = 1.0

#: An unknown variable counts as misspelt if it is at least this similar to a variable of ours; 1 means equal. One wrong
#: letter of five gives 0.8. ISSUER_BASE_URL, of an OpenID Connect library, gives 0.71 with ISSUER_STORE_URL.
_ALIKE = 0.8
#: A setting is not compared if its name has fewer letters than this. Otherwise ISSUER_KEY, which may be a variable of
#: another program, would look like our ISSUER_KEYS.
_DISTINCT = 5


@dataclass(frozen=True, slots=True)
class SettingType(Generic[T]):
    """The type of a setting.

    `read`: checks an argument, a text from the environment or a value of the file, and returns the value. It raises
    ConfigurationError or ValueError. `metavar`: name of the value in the command line's help. `words`: all allowed
    words.
    """

    read: Callable[[Any], T]
    metavar: str
    words: tuple[str, ...] = ()


def seconds(value: Any, name: str, *, zero: bool, most: float = threading.TIMEOUT_MAX) -> float:
    """Return a duration in seconds as a float. Raises InvalidArgument if it is not a number, too large or too low.

    `name`: name of the argument, for the error. `zero`: whether 0 is allowed.
    """
    within = not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value <= most
    if not within or (value == 0 and not zero):
        least = "0 or more" if zero else "above 0"
        problem = f"must be a number of seconds, {least}, at most {most:.0f}, not {brief(value)}"
        raise InvalidArgument(problem, value=value, argument=name)
    return float(value)


def _seconds(*, zero: bool, most: float = threading.TIMEOUT_MAX) -> SettingType[float]:
    def read(value: Any) -> float:
        if isinstance(value, str):
            with suppress(ValueError):
                value = float(value)
        return seconds(value, "", zero=zero, most=most)

    return SettingType(read, "SECONDS")


def _whole(value: object) -> int:
    number = int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value) else value
    if isinstance(number, bool) or not isinstance(number, int):
        raise ConfigurationError(f"must be a whole number, not {brief(value)}")
    return number


def _url(url: Any) -> Any:
    if isinstance(url, str) and "://" not in url:
        raise ConfigurationError("a URL needs a scheme, as in redis://, mongodb:// or sqlite:///")
    return url


def _url_or_none(url: Any) -> Any:
    return "none" if isinstance(url, str) and url.strip().lower() == "none" else _url(url)


def _addresses(pairs: object) -> dict[str, str]:
    """Return the addresses to connect to, by the addresses that servers report. Raises ConfigurationError."""
    if isinstance(pairs, str):
        pairs = dict(pair.partition("=")[::2] for pair in pairs.split(",") if pair)
    if not isinstance(pairs, Mapping):
        raise ConfigurationError('must be "10.0.0.5:6379=127.0.0.1:7001,..." or a table')
    found = {_address(each): _address(to) for each, to in pairs.items()}
    if "" in (*found, *found.values()):
        raise ConfigurationError("each address must be HOST:PORT")
    return found


def _command(line: object) -> str:
    """Return the command line. Raises ConfigurationError if invalid; its message has no part of it."""
    try:
        if not isinstance(line, str) or (line and not shlex.split(line)):
            raise ValueError  # noqa: TRY301 - as of `split`
    except ValueError:
        raise ConfigurationError("must be a program and its arguments, as a text with matching quotes") from None
    return line


def _server(url: object) -> str:
    if not isinstance(url, str) or not re.match(r"https?://.", url):
        raise ConfigurationError("must be a URL with https:// or http://, as in https://numbers.example:8000")
    return url


def _secret(text: object) -> str:
    if not isinstance(text, str) or not text.isascii() or not text.isprintable():
        raise ConfigurationError("must be a text of printable ASCII characters")
    return text.strip()


def _flag(value: object) -> bool:
    words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    value = words.get(value.lower(), value) if isinstance(value, str) else value
    if not isinstance(value, bool):
        raise ConfigurationError(f"must be true or false, not {brief(value)}")
    return value


def _path(path: object) -> str:
    if not isinstance(path, (str, os.PathLike)) or isinstance(named := os.fspath(path), bytes) or "\0" in named:
        raise ConfigurationError(f"must be the path of a file, not {brief(path)}")
    return named


def _keys(keys: object) -> dict[str, bytes]:
    """Return the secrets by name. Raises ConfigurationError if invalid; its message contains no secret."""
    if isinstance(keys, str):
        pairs = [pair.partition("=") for pair in keys.split(",") if pair]
        if not all(equals for _, equals, _ in pairs):  # the text may be a secret, so it is not shown
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


def _count(lowest: int, highest: int) -> SettingType[int]:
    def read(value: object) -> int:
        number = _whole(value)
        if not lowest <= number <= highest:
            raise ConfigurationError(f"must be {lowest}..{highest}, not {number}")
        return number

    return SettingType(read, "N")


def host_and_port(address: str) -> tuple[str, int]:
    """Return the host, for IPv6 without brackets, and the port of HOST:PORT. Raises ConfigurationError if invalid."""
    host, colon, port = address.strip().rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not bare or (":" in bare) is (bare == host) or not re.fullmatch("[0-9]{1,5}", port):
        raise ConfigurationError(f"must be HOST:PORT, as in 127.0.0.1:8000 or [::1]:8000, not {brief(address)}")
    if int(port) >= _PORTS:
        raise ConfigurationError(f"a port is 0..{_PORTS - 1}, not {port}")
    return bare, int(port)


def _address(address: object) -> str:
    """Return the address, or "" if there is none. Raises ConfigurationError if it is not HOST:PORT."""
    if not isinstance(address, str):
        raise ConfigurationError(f"must be HOST:PORT, not {brief(address)}")
    if address.strip().lower() in ("", "none"):
        return ""
    host_and_port(address)
    return address.strip()


def _listening(address: object) -> str:
    """Return the address to listen on, or "" if there is none. Raises ConfigurationError if invalid."""
    if not isinstance(address, str) or not address.strip().startswith(UNIX):
        return _address(address)
    path = address.strip().removeprefix(UNIX)
    if not path.startswith("/") or "\0" in path or len(os.fsencode(path)) > _UNIX_MOST:
        raise ConfigurationError(
            f"must be {UNIX} and an absolute path of up to {_UNIX_MOST} bytes, as in {UNIX}/run/issuer/http.sock, not "
            f"{brief(address)}"
        )
    return UNIX + path


def _one_of(*words: str) -> SettingType[str]:
    def read(value: object) -> str:
        if value not in words:
            raise ConfigurationError(f"must be {' or '.join(words)}, not {brief(value)}")
        return str(value)

    return SettingType(read, "TEXT", words)


def _names(names: object) -> list[str]:
    """Return the names in a list or in a comma-separated text. Raises ConfigurationError for another type."""
    each = names.split(",") if isinstance(names, str) else names
    if not isinstance(each, (list, tuple)) or not all(isinstance(name, str) and name.strip() for name in each):
        raise ConfigurationError('must be a list of names, as in ["ids.example.com"] or "ids.example.com,ids"')
    return [name.strip() for name in each]


def _compat(names: object) -> list[str]:
    """Return the names of other servers, each once. Raises ConfigurationError for an unknown name."""
    found = list(dict.fromkeys(_names(names)))
    for each in found:
        if each not in COMPAT:
            raise ConfigurationError(f"must be {', '.join(COMPAT[:-1])} or {COMPAT[-1]}, not {brief(each)}")
    if {"leaf", "leaf:exact"} <= {*found}:
        raise ConfigurationError("leaf and leaf:exact contradict each other: give one of them")
    return found


def _mount(path: object) -> str:
    """Return the beginning of paths without a slash at its end. Raises ConfigurationError if it is not a path."""
    if not isinstance(path, str) or not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*/?", path):
        problem = f"must be a path of letters, digits and ._~-, as in /ids, not {brief(path)}"
        raise ConfigurationError(problem)
    return path.rstrip("/")


def _prefix(prefix: object) -> str:
    if (
        not isinstance(prefix, str)
        or not prefix
        or any(letter in "{}" or not letter.isprintable() for letter in prefix)
    ):
        raise ConfigurationError(f"prefix {brief(prefix)}: needs at least one printable character, and no braces")
    return prefix


_OFF = (False, SettingType(_flag, ""))
_PATH = SettingType(_path, "FILE")
_COMMAND = SettingType(_command, "COMMAND")
#: The type of a text that is not checked here, but where it is used.
_TEXT: SettingType[Any] = SettingType(lambda value: value, "TEXT")


@dataclass(frozen=True, slots=True)
class SettingDefinition:
    """The definition of a setting.

    `help`: description in Markdown, without a period at the end. `unset`: Markdown that is shown in place of an empty
    default. `unit`: unit of a number. `connect`: whether `connect` and `aconnect` have a parameter for the setting.
    `command`: "issuer" or "serve" if this command has an option for the setting, otherwise "".
    """

    name: str
    default: Any
    kind: SettingType[Any]
    help: str
    unset: str = "none"
    unit: str = ""
    connect: bool = False
    command: Literal["issuer", "serve", ""] = ""

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"ISSUER_{self.name.upper()}"

    @property
    def argument(self) -> str:
        """The name in `connect` and on the command line."""
        return self.name.removesuffix("_url")

    @property
    def shown_default(self) -> str:
        """The default in Markdown."""
        if self.default in ("", -1, {}, [], None):
            return self.unset
        return f"`{self.default:g}`" if isinstance(self.default, float) else f"`{str(self.default).lower()}`"


def _setting(default: T, kind: SettingType[T], help: str, **more: Any) -> T:
    """Return the dataclass field of a setting. `repr` does not show its value, because a URL may contain a password."""
    definition = {"default": default, "kind": kind, "help": help, **more}
    return field(default_factory=lambda: default, repr=False, metadata=definition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The values of all settings, in the order of the documentation. Times are in seconds.

    `sources`: where each value comes from: "argument", name of a variable, path of a file, or "default".
    """

    # fmt: off
    redis_url: Any = _setting("none", SettingType(_url_or_none, "URL"),
        "Address of Redis: a URL with `redis://`, `rediss://`, `unix://`, `redis+sentinel://` or `redis+cluster://`. "
        "With `none`, the process works in direct mode, without Redis", connect=True, command="issuer")
    store_url: Any = _setting(None, SettingType(_url, "URL"),
        "Address of the store: `mongodb://`, `mongodb+srv://`, `postgresql://`, `mysql://`, `mariadb://`, "
        "`sqlite:///path`, or `memory://` for tests. If a MongoDB URL has no database, the issuer uses the database "
        "`issuer`",
        unset="`sqlite:///$XDG_DATA_HOME/issuer/issuer.db`", connect=True, command="issuer")
    server: str = _setting("", SettingType(_server, "URL"),
        "Address of an `issuer serve`, as `https://host:port`, in place of Redis and a store. Add `?ssl_ca=FILE` for "
        "a certificate authority of your own", connect=True, command="issuer")
    token: str = _setting("", SettingType(_secret, "TOKEN"),
        "Token for `server`. In scripts, use `token_file`", connect=True)
    token_file: str = _setting("", _PATH,
        "File that contains the token for `server`, in one line", connect=True)
    prefix: str = _setting("issuer", SettingType(_prefix, "TEXT"),
        "First part of all Redis keys. It must consist of printable characters, without braces",
        connect=True, command="issuer")
    redis_password_command: str = _setting("", _COMMAND,
        "Program that prints the password of Redis, with its arguments, for passwords that expire. No shell is used. "
        "`redis_url` must have no password")
    store_password_command: str = _setting("", _COMMAND, "The same for the store, and `store_url`")
    redis_address_map: Mapping[str, str] = _setting({}, SettingType(_addresses, "PAIRS"),
        "Addresses of Redis servers that this process cannot reach, each with the address to connect to instead. For a "
        "Cluster or Sentinels that report internal addresses, as behind NAT: `10.0.0.5:6379=127.0.0.1:7001,...` as a "
        'text, or the table `{"10.0.0.5:6379" = "127.0.0.1:7001"}` in a file', connect=True)
    timeout: float = _setting(5.0, _seconds(zero=True),
        "Longest time that a call may wait, in seconds, 0 or more. With 0, a call gets only numbers that are in the "
        "memory of its process", connect=True, command="issuer")
    # PostgreSQL and MongoDB take at most 2^31-1 ms.
    store_timeout: float = _setting(3.0, _seconds(zero=False, most=2_147_483),
        "Longest duration of a request to the store, in seconds, above 0, at most 2147483. If the loader of a segment "
        "does not finish within this time and one more second, Redis elects another loader. Use the same value in "
        "every process, and a value well below `timeout`", connect=True)
    redis_timeout: float = _setting(1.0, _seconds(zero=False),
        "Longest duration of a round trip to Redis, in seconds, above 0", connect=True)
    redis_connections: int = _setting(REDIS_CONNECTIONS, _count(1, 10_000),
        "Maximum number of connections from this process to Redis, 1..10000. If all are in use, a call waits for one, "
        "within its `timeout`. Concurrent calls for the same tag share a connection. For a Redis Cluster, set a value "
        "above the number of nodes", unit="connections", connect=True)
    insist: float = _setting(5.0, _seconds(zero=True),
        "Time in seconds, 0 or more. If the store is down and no numbers are left, calls wait this long for the "
        "store. After that, calls fail at once until the store is back. Set a longer time than a failover of the "
        "store takes", connect=True)
    lease: int = _setting(0, _count(0, LEASE_MOST),
        "Count of numbers of a trend tag that a process draws from Redis in advance, 0..1000000. If a tag has a "
        "`lease` of its own, that value applies", unit="numbers", connect=True)
    idle_after: float = _setting(900.0, _seconds(zero=True),
        "Time in seconds, 0 or more. If nobody has drawn from a tag for this time, the process returns the unused "
        "numbers of the tag that it holds in memory, and forgets the tag until its next use. A tag with the setting "
        "`drain=False` is kept", connect=True)
    journal: str = _setting("", _PATH,
        "File of the journal. The process appends every reservation to this file before it uses the numbers. The "
        "directory of the file must exist", connect=True)
    keys: Mapping[str, bytes] = _setting({}, SettingType(_keys, "KEYS"),
        'Secret keys for scrambled tags, each with a name: `k1=...,k2=...` as a text, or the table `{k1 = "..."}` in '
        "a file. Each secret has 16 bytes or more", connect=True)
    application: str = _setting("issuer", _TEXT, "Name of your service in the ledger. `issuer who` shows it")
    port_number: int = _setting(0, SettingType(_whole, "N"),
        "Port in the name of this process, 0..65535. The process leases its machine number for `snowflake` under the "
        "name `application.port.ip`, and gets the same machine number again after a restart if its name is the same")
    ip_address: str = _setting("", _TEXT, "IP address in the name of this process, see `port_number`",
        unset="this host's")
    machine: int = _setting(-1, SettingType(_whole, "N"),
        "Fixed machine number of this process for `snowflake`, 0 or more. Each process needs a different one")
    rack: int = _setting(-1, SettingType(_whole, "N"),
        "Fixed rack number of this process for `snowflake`, 0 or more. Only for layouts with racks")
    machine_files: str = _setting("", _PATH,
        "Directory for the files of machine numbers. The source `file` requires it",
        unset="the temporary directory")
    require_servers: bool = _setting(*_OFF,
        "Raise an error at start if no store is configured. Otherwise a container with a forgotten variable "
        "would use an SQLite file of its own, and issue numbers from 1")
    metrics: bool = _setting(*_OFF, "Add the metrics to the default registry of `prometheus_client`",
        connect=True)
    http: str = _setting("127.0.0.1:8000", SettingType(_listening, "HOST:PORT"),
        "Address at which `issuer serve` accepts HTTP, as `HOST:PORT`, or as `unix:/PATH` for a Unix socket. With port "
        "0 it uses any free port. With `none` it does not serve HTTP", command="serve")
    resp: str = _setting("", SettingType(_listening, "HOST:PORT"),
        "Address at which `issuer serve` accepts the Redis protocol, as `HOST:PORT` or `unix:/PATH`", command="serve")
    workers: int = _setting(1, _count(1, WORKERS_MOST), "Number of worker processes of `issuer serve`, 1..256",
        command="serve")
    tokens: str = _setting("", _PATH,
        "File of tokens. With it, each caller of `issuer serve` needs a token that is in this file", command="serve")
    open: bool = _setting(*_OFF,
        "Allow callers on other machines to use `issuer serve` without a token", command="serve")
    tls_cert: str = _setting("", _PATH,
        "File with the certificate of `issuer serve` and the certificates between it and its authority, as PEM. With "
        "it, HTTP and the Redis protocol use TLS at `HOST:PORT`, and no TLS at `unix:/PATH`", command="serve")
    tls_key: str = _setting("", _PATH, "File with the private key of `tls_cert`, without a password", command="serve")
    allowed_hosts: Sequence[str] = _setting([], SettingType(_names, "NAME"),
        "Names that HTTP requests to `issuer serve` may have in the header `Host`. `*.example.com` allows all "
        "subdomains, `*` allows any name. `localhost` and IP addresses are always allowed. In the environment, "
        "separate the names with commas; in a file, write a list", command="serve")
    console: bool = _setting(*_OFF,
        "Also serve the console: pages for operators at `/console`. With `tokens`, operators log in with a token",
        command="serve")
    console_changes: bool = _setting(*_OFF,
        "Let the console change tags although callers need no token. With `tokens`, the scope `admin` decides",
        command="serve")
    compat: Sequence[str] = _setting([], SettingType(_compat, "NAME"),
        "Also answer the HTTP calls of another server: `leaf`, `leaf:exact`, `tinyid` or `leaf-go`. In the "
        "environment, separate the names with commas; in a file, write a list", command="serve")
    compat_prefix: str = _setting("", SettingType(_mount, "PATH"),
        "Path before the paths of all `compat` calls, as in `/ids`")
    compat_timeout: float = _setting(2.0, _seconds(zero=False),
        "Longest time that a `compat` call may wait, in seconds, above 0. Clients of tinyid wait 5 s")
    compat_batch: int = _setting(100_000, _count(1, 1_000_000),
        "Maximum count of numbers in a reply to a call of tinyid, 1..1000000. As in tinyid, a higher `batchSize` is "
        "reduced to it", unit="numbers")
    compat_any_page: bool = _setting(*_OFF,
        "Let browsers draw numbers by `compat` calls with GET, though web pages of any site can then use up numbers "
        "through the browsers of their visitors. Without it, a server without tokens rejects a GET with a `User-Agent` "
        "that begins with `Mozilla/`")
    drain_delay: float = _setting(1.0, _seconds(zero=True),
        "Time in seconds, 0 or more. After SIGTERM, `/readyz` answers 503, and `issuer serve` still accepts "
        "connections for this time. Set a longer time than your load balancer needs to stop sending requests: 10 in "
        "Kubernetes", command="serve")
    longest_ttl: float = _setting(604_800.0, _seconds(zero=False),
        "Longest time in seconds, above 0, for which `issuer serve` keeps an `Idempotency-Key` and its number. A "
        "request with a longer `ttl` is rejected")
    keys_per_second: int = _setting(100, _count(1, 1_000_000),
        "Maximum number of new `Idempotency-Key` values per second, 1..1000000. Each token has this limit. Callers "
        "without a token share one limit", unit="keys")
    living_keys: int = _setting(500_000, _count(1, 1_000_000_000),
        "Number of `Idempotency-Key` values that `issuer serve` keeps at a time for a token that sends new ones all "
        "the time, 1..1000000000. After a pause, a token can have twice as many. Each key needs about 400 bytes in "
        "Redis until its `ttl` ends", unit="keys")
    series_per_tag: int = _setting(10_000, _count(1, 10_000_000),
        "Maximum number of series of a keyed tag, 1..10000000. If a tag has reached this number, `issuer serve` "
        "rejects requests with a new `restart_key`", unit="series")
    log_format: str = _setting("text", _one_of("text", "json"),
        "Format of the logs of `issuer serve`: `text` or `json`", command="serve")
    # fmt: on

    sources: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(DEFINITIONS, DEFAULT))

    @property
    def embedded(self) -> bool:
        """Whether neither Redis nor a store is configured.

        If so, the store is an SQLite file of this machine, in which a tag is created at its first use.
        """
        return not self.server and self.sources["redis_url"] == self.sources["store_url"] == DEFAULT

    @property
    def window(self) -> float:
        """Maximum time, in seconds, in which an elected process must load a segment. Redis then elects another one."""
        return self.store_timeout + GRACE


#: The definitions of all settings by name.
DEFINITIONS: Mapping[str, SettingDefinition] = {
    each.name: SettingDefinition(each.name, **each.metadata) for each in fields(Settings) if each.metadata
}


def load(
    arguments: Mapping[str, Any] | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings from all sources.

    The settings file is `config`, else $ISSUER_CONFIG, else ./issuer.toml, else $XDG_CONFIG_HOME/issuer/issuer.toml. A
    file that `config` or the variable names must exist. Paths in the file are relative to the folder of the file.

    Args:
        arguments: Values by name. A value that is None counts as not given.
        config: Path of the settings file.
        environ: Environment variables. Default: those of this process.

    Raises:
        ConfigurationError: An unknown key, a missing file, an invalid value, an empty variable, or a default that
          `require_servers` forbids.
    """
    environment = os.environ if environ is None else environ
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    _check_misspelt(environment, {*given, "config"} if config else {*given})
    from_file, path = _file(config, environment)
    found: dict[str, tuple[Any, str]] = {}
    for name, definition in DEFINITIONS.items():
        variable = definition.variable
        if name in given:
            found[name] = given[name], "argument"
        elif variable in environment:
            found[name] = _filled(variable, environment[variable]), variable
        elif path is not None and name in from_file:
            found[name] = _beside(path, name, from_file[name]), str(path)
    if "store_url" not in found:
        for variable in STORE_VARIABLES:
            if variable in environment:
                found["store_url"] = _filled(variable, environment[variable]), variable
                break
    if "store_url" in found and "redis_url" not in found and REDIS_VARIABLE in environment:
        found["redis_url"] = _filled(REDIS_VARIABLE, environment[REDIS_VARIABLE]), REDIS_VARIABLE
    home = Path(environment.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    found.setdefault("store_url", (f"sqlite:///{home / 'issuer' / 'issuer.db'}", DEFAULT))
    settings = Settings(
        **{name: _checked(name, value, source) for name, (value, source) in found.items()},
        sources={name: found[name][1] if name in found else DEFAULT for name in DEFINITIONS},
    )
    (_check_client if settings.server else _check_default)(settings)
    _check_tokens(settings)
    return settings


def _checked(name: str, value: Any, source: str) -> Any:
    try:
        return DEFINITIONS[name].kind.read(value)
    except (ValueError, ConfigurationError) as error:
        raise ConfigurationError(f"{name} from {source}: {error}") from error


def _check_client(settings: Settings) -> None:
    """Raise ConfigurationError if a client of a server has servers of its own, or two tokens."""
    for name in ("redis_url", "store_url", "journal"):
        if settings.sources[name] != DEFAULT:
            raise ConfigurationError(
                f"server ({settings.sources['server']}) and {name} ({settings.sources[name]}) contradict each other: "
                "the server has Redis, the store and the journal. Configure one of the two"
            )
    if settings.token and settings.token_file:
        raise ConfigurationError("token and token_file contradict each other: configure one of the two")


def _check_tokens(settings: Settings) -> None:
    """Raise ConfigurationError if a token is configured for no server: `tokens` of `issuer serve` may be meant."""
    for name in ("token", "token_file"):
        if getattr(settings, name) and not settings.server:
            variable = DEFINITIONS[name].variable
            raise ConfigurationError(
                f"{variable}: {name} ({settings.sources[name]}) needs server (ISSUER_SERVER); the tokens of "
                "`issuer serve` are in the file ISSUER_TOKENS"
            )


def _check_default(settings: Settings) -> None:
    """Raise ConfigurationError if it is probably a mistake that no store is configured.

    The default store is a file that only this machine has. So each machine would count from 1.
    """
    if settings.sources["store_url"] != DEFAULT:
        return
    way_out = "Configure the store: --store, ISSUER_STORE_URL or store_url in a file"
    sources = settings.sources
    if settings.redis_url != "none":
        raise ConfigurationError(
            f"Redis is configured ({sources['redis_url']}), but no store: two machines, each with its own SQLite "
            f"file, would issue the same numbers after Redis is emptied. {way_out}"
        )
    if sources["redis_url"] != DEFAULT:
        raise ConfigurationError(
            f"Redis is none ({sources['redis_url']}), so all numbers come from the store, but no store is "
            f"configured. {way_out}. If you configure neither, numbers come from {settings.store_url}"
        )
    if settings.require_servers:
        raise ConfigurationError(
            f"no store is configured, and require_servers ({sources['require_servers']}) forbids the default, a "
            f"file that only this machine has ({settings.store_url}). {way_out}"
        )


def _filled(variable: str, value: str) -> str:
    """Return the value of a variable. Raises ConfigurationError if it is empty, as `${VAR:-}` in a compose file may be.

    An empty variable does not count as missing: two containers could then each count from 1 in a file of their own.
    """
    if not value.strip():
        raise ConfigurationError(f"{variable} is empty: set a value, or remove the variable")
    return value


def _beside(path: Path, name: str, value: object) -> object:
    """Return a value of the settings file. A relative path is made absolute: it is relative to the file's folder."""
    if not isinstance(value, str) or not value:
        return value
    if DEFINITIONS[name].kind is _PATH:
        return str(path.absolute().parent / value)
    if name == "store_url" and (file := file_path(value)):
        return f"{value.removesuffix(file)}{path.absolute().parent / file}"
    return value


def _check_misspelt(environment: Mapping[str, str], given: Collection[str]) -> None:
    """Raise ConfigurationError if a variable looks misspelt.

    With a misspelt ISSUER_STORE_URL, each machine would count from 1. A setting is not compared if it is in `given`, or
    if its correct variable is set. Variables that are not similar to any of ours belong to other programs.
    """
    ours = {"ISSUER_CONFIG": "config", **{each.variable: name for name, each in DEFINITIONS.items()}}
    wanted = [name for variable, name in ours.items() if name not in given and variable not in environment]
    # `connect` and the command line have the names `redis` and `store` for redis_url and store_url: compare with both.
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


def _file(config: str | os.PathLike[str] | None, environment: Mapping[str, str]) -> tuple[dict[str, Any], Path | None]:
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
        except UnicodeDecodeError as error:  # not chained, as the error contains the whole file
            raise ConfigurationError(f"settings file {candidate}: {error}") from None
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"settings file {candidate}: {error}") from error
        unknown = sorted(content.keys() - DEFINITIONS.keys())
        if unknown:
            raise ConfigurationError(
                f"settings file {candidate}: unknown key {brief(unknown[0])}; the keys are {', '.join(DEFINITIONS)}"
            )
        return content, candidate
    return {}, None
