"""URLs of servers and stores: their form, and how to show them without secrets.

If a password is not percent-encoded, parsers take a part of it for a host, a database or a parameter, and show it in
their errors. So a URL is checked against a strict form first. Errors of parsers are never shown or chained.
"""

from __future__ import annotations

import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_HOST = r"(?:[\w.%-]*|\[[\w.:%]*\])(?::[0-9]{1,5})?"
#: There is no @ after the hosts: it would belong to a password that contains a / or ?.
_URL = re.compile(rf"(?:{_SCHEME.pattern})://([^/?]*@)?({_HOST}(?:,{_HOST})*)(/[^?@]*)?(\?[^@]*)?")
_NUMBERED = re.compile(r"rediss?(\+cluster)?://", re.IGNORECASE)

_SQLITE = "sqlite"
#: An SQLite path is used without decoding, so this would be a part of the file's name.
_PARAMETERS = re.compile(r"\?\w+=.*", re.DOTALL)

#: Advice for a URL that cannot be parsed.
ENCODE = (
    "percent-encode all characters but letters and digits in user names, passwords and values of parameters: %23 "
    "for #, %2F for /, %3A for :, %3F for ?, %40 for @"
)


def flaw(url: str) -> str:
    """Return the problem with the form of a server's URL, and what to do. "" if there is none. Show no part of it."""
    found = _URL.fullmatch(url)
    if found is None or not url.isprintable():
        return f"it does not have the form scheme://user:password@host:port/name?parameter=value; {ENCODE}"
    if _NUMBERED.match(url) and not re.fullmatch("/?[0-9]*/?", found[3] or ""):
        # redis-py would take the first database.
        return f"the part after the host must be a database number; {ENCODE}"
    return ""


def has_parameters(path: str) -> bool:
    """Return True if an SQLite path ends like the parameters of a URL."""
    return _PARAMETERS.search(path) is not None


def mask(url: str) -> str:
    """Return the URL without login and parameters. If its form is wrong, return only its scheme."""
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
