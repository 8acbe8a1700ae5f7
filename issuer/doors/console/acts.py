"""The acts of the console: create, configure, halt, recover and delete. Each is shown first, and then confirmed.

The handlers of the HTTP API carry them out. So both check, change and log the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from issuer.care.inspection import Inspection
from issuer.care.recovery import Recovery
from issuer.doors.console.words import number
from issuer.doors.web import tags, upkeep
from issuer.doors.web.calls import Request
from issuer.doors.web.replies import Problem, Reply
from issuer.doors.web.service import Service
from issuer.errors import InvalidArgument, IssuerError
from issuer.operations.tag_options import TAG_OPTIONS, TagOption
from issuer.views import said
from issuer_persistence.records import SETTINGS

#: The acts, each with what it does. The acts in _TYPED need the name of the tag, typed by hand.
ACTS: Final[Mapping[str, str]] = {
    "create": "Create a tag",
    "configure": "Change the settings",
    "halt": "Stop the reservations",
    "recover": "Recover",
    "delete": "Delete",
}
_TYPED: Final = ("recover", "delete")
#: The acts with settings.
WITH_FIELDS: Final = ("create", "configure")

#: Seconds that a page waits for the state of the tag, and for the dry run of a recovery.
_STATE_WITHIN: Final = 0.5
_DRY_RUN_WITHIN: Final = 5.0


def _or_word(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdecimal() else text


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


#: Conversions of the text of a field, by kind of the setting. Settings of other kinds are set on the command line.
_KINDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "whole": int, "number": int, "share": float, "duration": _or_word, "text": str, "word": str, "flag": _flag,
    "step": _or_word, "lease": _or_word, "limit": _or_word,
}  # fmt: skip
#: Settings of the scheme that can be changed later.
_LATER: Final = ("format", "timezone", "stride", "offset")


def fields(what: str) -> dict[str, TagOption]:
    """Return the settings that a form for `create` or `configure` has, by name."""
    return {
        name: option
        for name, option in TAG_OPTIONS.items()
        if option.kind in _KINDS
        and (what == "create" or (SETTINGS[name].changes if name in SETTINGS else name in (*_LATER, "start", "above")))
    }


class Form:
    """A form of the console, as it was opened or sent.

    Attributes:
        what: One of ACTS.
        tag: Name of the tag.
    """

    def __init__(self, service: Service, values: Mapping[str, str]) -> None:
        """Read the form. Raises Problem if there is no such act."""
        self._service, self._values = service, values
        self.what, self.tag = values.get("what", ""), values.get("tag", "")
        if self.what not in ACTS:
            raise Problem(404, "not_found", f"the console has no such act; it has {', '.join(ACTS)}")

    def _settings(self) -> dict[str, Any]:
        """Return the settings that were filled in. Raises InvalidArgument."""
        found: dict[str, Any] = {}
        for name, option in fields(self.what).items():
            text = self._values.get(name, "").strip()
            if text:
                try:
                    found[name] = _KINDS[option.kind](text)
                except ValueError:
                    problem = f"has the wrong form: {option.help}"
                    raise InvalidArgument(problem, tag=self.tag, value=text, argument=name) from None
        return found

    async def page(self, error: IssuerError | None = None) -> dict[str, Any]:
        """Return the content of the page: the form, or what would be changed. Nothing is changed.

        `error`: why the act was rejected. The form is then shown again.
        """
        ids, sent = self._service.ids, "sent" in self._values
        seen = None if self.what == "create" else await ids.inspect(self.tag, timeout=_STATE_WITHIN)
        changes: list[tuple[str, object, object]] = []
        recoveries: list[Recovery] = []
        if self.what in WITH_FIELDS and sent and error is None:
            try:
                changes = [(name, _old(seen, name), value) for name, value in self._checked().items()]
            except InvalidArgument as problem:
                error = problem
        elif self.what == "halt":
            changes = [("reservations", "stopped" if seen is not None and seen.store.halted else "allowed", "stopped")]
        elif self.what == "delete" and seen is not None:
            changes = [("tag", f"max {seen.store.max:,}", "deleted; a new tag of this name goes on above its numbers")]
        elif self.what == "recover":
            recoveries = await ids.recover(self.tag, at_least=self._at_least(), dry_run=True, timeout=_DRY_RUN_WITHIN)
        return {
            "what": self.what,
            "title": ACTS[self.what],
            "tag": self.tag,
            "problem": "" if error is None else said(error),
            "fields": fields(self.what) if self.what in WITH_FIELDS else {},
            "old": {} if seen is None else {name: _old(seen, name) for name in fields("configure")},
            "values": {name: text for name, text in self._values.items() if name in (*TAG_OPTIONS, "at_least", "sent")},
            "confirms": error is None and (sent or self.what not in WITH_FIELDS),
            "typed": self.what in _TYPED,
            "changes": changes,
            "recoveries": recoveries,
        }

    def _checked(self) -> dict[str, Any]:
        settings = self._settings()
        if self.what == "configure" and not settings:
            raise InvalidArgument("nothing to change: fill in at least one setting", tag=self.tag)
        return settings

    def _at_least(self) -> int:
        text = self._values.get("at_least", "").strip() or "0"
        if not (text.isascii() and text.isdigit() and len(text) < 20):  # noqa: PLR2004 - 2^63-1 has 19 digits
            raise InvalidArgument("must be a whole number, 0..2^63-1", tag=self.tag, value=text, argument="at_least")
        return int(text)

    async def carry_out(self, request: Request) -> Reply:
        """Do it. Raises Problem if the typed name is not that of the tag, and the errors of the API."""
        if self.what in _TYPED and self._values.get("typed", "") != self.tag:
            raise Problem(422, "wrong_name", "the typed name is not the name of the tag, so nothing was changed")
        call, body = self._call()
        request.body = body
        return await call(self._service, request)

    def _call(self) -> tuple[Callable[[Service, Request], Awaitable[Reply]], dict[str, Any]]:
        match self.what:
            case "create":
                return tags.create, {"tag": self.tag, **self._settings()}
            case "configure":
                return tags.configure, self._settings()
            case "recover":
                return upkeep.recover, {"dry_run": False, "at_least": self._at_least()}
            case "halt":
                return upkeep.halt, {}
        return tags.delete, {}


def _old(seen: Inspection | None, name: str) -> str:
    """Return the present value of a setting as text. "" if there is none."""
    if seen is None:
        return ""
    shown: dict[str, object] = {
        "start": seen.store.max + 1,
        "above": seen.store.max,
        "step": f"auto, {seen.store.step:,} now" if seen.store.step_mode == "auto" else seen.store.step,
        "lease": "auto" if seen.lease_mode == "auto" else "process" if seen.lease is None else seen.lease,
    }
    place = next((each for each in (seen, seen.store) if hasattr(each, name)), None)
    value = shown[name] if name in shown else seen.scheme.get(name, "") if place is None else getattr(place, name)
    return str(value).lower() if isinstance(value, bool) else number(value) if isinstance(value, int) else str(value)
