"""A store that hangs: every call of it takes as long as it may, and then there is no answer."""

import threading
from typing import Any

from issuer_persistence.errors import Unconfirmed
from issuer_persistence.memory import MemoryStore

_HANGS = {"reserve", "get", "hand_back", "store_id", "create", "tags", "ledger", "prune", "halt", "recover"}


class HangingStore(MemoryStore):
    """A memory store that can be made to hang, as one behind a firewall that swallows everything."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = threading.Event()
        self._answers.set()
        #: How long a reservation takes, in seconds; and of which tag, None: of each.
        self.seconds = 0.0
        self.slow: str | None = None
        #: By name, the calls that were begun.
        self.begun: list[str] = []

    def hang(self) -> None:
        """From now on no call is answered."""
        self._answers.clear()

    def resume(self) -> None:
        """Answer again, those who still wait too."""
        self._answers.set()

    def top(self, tag: str) -> int:
        """Return the highest number reserved, whether it hangs or not."""
        return self.snapshot().tags[tag].max

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in _HANGS:
            return found

        def call(*args: Any, timeout: float, **options: Any) -> Any:
            self.begun.append(name)
            slow = name == "reserve" and self.slow in (None, args[0])
            taken = min(self.seconds, timeout) if slow else 0.0
            if taken:
                threading.Event().wait(taken)
            if taken == timeout or not self._answers.wait(timeout - taken):
                raise Unconfirmed(f"no answer within {timeout:g} s")
            return found(*args, timeout=timeout, **options)

        return call
