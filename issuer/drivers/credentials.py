"""Gives the connections to Redis the passwords of `redis_credentials` and `redis_password_command`."""

from __future__ import annotations

import redis

from issuer.errors import ConfigurationError, RedisUnavailable
from issuer.threads import in_thread
from issuer_persistence.credentials import LONGEST, Credentials
from issuer_persistence.errors import Misconfigured, StoreError

#: The user and the password of one connection.
Login = redis.UsernamePasswordCredentialProvider


class Provider(redis.CredentialProvider):
    """The logins of new connections.

    A connection of ours gets its login before it connects, because a command may take longer than a round trip to Redis
    may. A subscription is a connection of redis-py, which asks while it connects.

    Args:
        credentials: Where the passwords come from.
        user: User of the URL, or "".
    """

    def __init__(self, credentials: Credentials, user: str) -> None:
        self._credentials = credentials
        self._user = user
        self._last: Login | None = None

    def login(self, left: float) -> Login:
        """Return the login of a new connection within `left` seconds. Raises ConfigurationError, RedisUnavailable."""
        try:
            user, password = self._credentials.get(left)
        except StoreError as error:
            kind = ConfigurationError if isinstance(error, Misconfigured) else RedisUnavailable
            raise kind(f"redis: {error}") from error
        return Login(user or self._user, password)

    def refused(self, login: Login | None = None) -> None:
        """Record that the server refuses this login. Default: the last one that redis-py has asked for."""
        if (login := login or self._last) is not None:
            self._credentials.refused(login.password)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return the login of a subscription."""
        self._last = login = self.login(LONGEST)
        return (login.username, login.password) if login.username else (login.password,)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        """Return the login of a subscription. The event loop does not wait."""
        return await in_thread(self.get_credentials)
