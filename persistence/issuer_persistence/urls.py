"""Check the form of servers' and stores' URLs, and show URLs without secrets.

If a password is not percent-encoded, a parser can take a part of it for a host, a database or a parameter, and show
this part in its error. So a URL is checked against a strict form first. A parser's error is never shown or chained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST = r"(?:[\w.%-]*|\[[\w.:%]*\])(?::[0-9]{1,5})?"
#: An @ after the hosts is not allowed: it shows that the password contains a / or a ? that is not encoded.
_URL = re.compile(rf"(?:{_SCHEME.pattern})://([^/?]*@)?({_HOST}(?:,{_HOST})*)(/[^?@]*)?(\?[^@]*)?")
_NUMBERED = re.compile(r"rediss?(\+cluster)?://", re.IGNORECASE)

#: The usual scheme of each SQL database, by the schemes that are in use.
_SQL = {"postgres": "postgresql", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mariadb"}

_SQLITE = "sqlite"
#: The end of an SQLite path that looks like URL parameters. SQLite would take this end as a part of the file's name.
_PARAMETERS = re.compile(r"\?\w+=.*", re.DOTALL)

#: Advice for a URL that cannot be parsed.
ENCODE = (
    "percent-encode all characters but letters and digits in user names, passwords and values of parameters: %23 "
    "for #, %2F for /, %3A for :, %3F for ?, %40 for @"
)


def flaw(url: str) -> str:
    """Return what is wrong with the form of a URL, and what the operator must do. "" if the form is right.

    The text contains no part of the URL, because any part could belong to the password.
    """
    found = _URL.fullmatch(url)
    if found is None or not url.isprintable():
        return f"it does not have the form scheme://user:password@host:port/name?parameter=value; {ENCODE}"
    if _NUMBERED.match(url) and not re.fullmatch("/?[0-9]*/?", found[3] or ""):
        # Without this check, redis-py would use database 0.
        return f"the part after the host must be a database number; {ENCODE}"
    return ""


def usual(url: str) -> str:
    """Return a URL with the usual scheme of its SQL database.

    Hosting providers write `postgres://`. SQLAlchemy adds its driver, as in `mysql+pymysql://`.
    """
    scheme, separator, rest = url.partition("://")
    name = _SQL.get(scheme.partition("+")[0])
    return f"{name}{separator}{rest}" if name else url


def parameters(url: str) -> tuple[str, dict[str, str]]:
    """Return a URL without its parameters, and the parameters. A + stands for itself, as libpq reads it."""
    address, _, query = url.partition("?")
    pairs = (each.partition("=") for each in query.split("&") if each)
    return address, {unquote(name): unquote(value) for name, _, value in pairs}


def with_parameters(address: str, values: Mapping[str, str]) -> str:
    """Return the URL with these parameters. `address`: the URL without parameters."""
    query = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in values.items())
    return f"{address}?{query}" if query else address


def has_parameters(path: str) -> bool:
    """Return True if an SQLite path ends with something like URL parameters, for example `?mode=ro`."""
    return _PARAMETERS.search(path) is not None


def mask(url: str) -> str:
    """Return the URL with `***` for login and parameters. If the form is wrong, show only the scheme."""
    scheme, separator, rest = url.partition("://")
    if url == "none":
        return url
    if not separator or not _SCHEME.fullmatch(scheme):
        return "***"
    if scheme == _SQLITE and rest.startswith("/"):
        return f"{scheme}://{_PARAMETERS.sub('?***', rest)}"
    found = _URL.fullmatch(url)
    if found is None or flaw(url):
        return f"{scheme}://***"
    login, hosts, path, parameters = found.groups()
    return f"{scheme}://{(login and '***@') or ''}{hosts}{path or ''}{(parameters and '?***') or ''}"
