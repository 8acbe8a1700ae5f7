"""The configuration of an issuer. The blocking and the asyncio interface use the same class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from issuer.core import scheme_record
from issuer.core.events import Observers
from issuer.core.record import Identity
from issuer.errors import SchemeError
from issuer.forks import no_fork
from issuer.gateway.keys import redis_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from issuer.drivers.relay import Relay
    from issuer.instance import Instance
    from issuer.numbers.codec import Scheme
    from issuer.settings import Settings
    from issuer_persistence.contract import Store
    from issuer_persistence.records import Tag

#: Time limit for returning unused numbers in `close` or at the exit of the process, in seconds.
CLOSING = 3.0

#: How many numbers `stream` draws in advance from a trend tag. A `lease` of the tag or of `connect` has precedence.
STREAM_LEASE = 1000

#: Maximum number of schemes in the cache of an issuer. The cache contains one scheme for each tag.
SCHEMES_MOST = 10_000


@dataclass(frozen=True, slots=True)
class IssuerConfig:
    """Configuration of an issuer: the settings, and the other arguments of `connect`.

    `redis`: name of Redis in messages, None if there is no Redis. `relay`: the server of a
    client, which has the Redis. `own_store`: whether `close` of the issuer must also
    close the store. `instance`: identity of this process, for strategies. `identity`: id of the store.
    """

    settings: Settings
    redis: str | None
    store: Store
    own_store: bool
    plugins: Sequence[Any]
    instance: Instance
    events: Observers
    relay: Relay | None = None
    identity: Identity = field(default_factory=Identity)
    _schemes: dict[str, tuple[Mapping[str, Any], Scheme]] = field(default_factory=dict)

    def elsewhere(self, tag: Tag) -> bool:
        """Whether the server of this client draws the numbers of the tag."""
        return self.relay is not None and not self.relay.served_here(tag)

    def texts(self, tag: Tag) -> Scheme:
        """Return the object that converts the tag's counter values to numbers and texts, also for a tag without scheme.

        Raises ConfigurationError, for example if a secret key is missing.
        """
        known = self._schemes.get(tag.tag)
        if known is None or known[0] != tag.scheme:
            if len(self._schemes) >= SCHEMES_MOST:
                self._schemes.clear()
            known = self._schemes[tag.tag] = tag.scheme, self._scheme(tag)
        return known[1]

    def reader(self, tag: Tag) -> Scheme:
        """Return the object that decodes the tag's numbers and texts.

        If a secret key of the tag is missing, the object decodes only numbers that other keys have scrambled.
        """
        try:
            return self.texts(tag)
        except SchemeError:
            return self._scheme(tag, reading=True)

    def _scheme(self, tag: Tag, *, reading: bool = False) -> Scheme:
        packing = None
        with no_fork():
            from issuer.numbers.codec import Scheme

            if scheme_record.strategy(tag.scheme) == scheme_record.SNOWFLAKE:
                from issuer.strategies.snowflake.layout import Layout

                packing = Layout.of(tag.scheme.get("options", {}))
        return Scheme(tag, self.settings.keys, reading=reading, packing=packing)

    def key(self, tag: str) -> str:
        return redis_key(self.settings.prefix, tag)

    def hash_key(self, tag: str) -> str | None:
        """Return the key of the tag's hash in Redis, or None if there is no Redis."""
        return None if self.redis is None else redis_key(self.settings.prefix, tag)

    def described(self, kind: str) -> str:
        return f"<{kind} redis={self.redis!r} store={self.store.url!r} prefix={self.settings.prefix!r}>"
