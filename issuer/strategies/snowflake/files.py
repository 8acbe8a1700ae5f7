"""Properties files for machine numbers, with a lock that ends with its process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):  # Windows has none, and a client of a server needs no files
    import fcntl

from issuer.errors import ConfigurationError, CorruptState, Unavailable


class LockLost(ConfigurationError):
    """The lock was released, or the lock file was removed or replaced. Another process may now have the lock."""


class Properties:
    """A properties file with one `name=value` per line, under a lock that one process of this host can hold.

    The lock is a file, `.lock`. Other programs may remove it, for example a cleanup of temporary directories. So each
    write checks that the lock file exists, and updates its time. In a forked child, call `forget`: the parent keeps the
    lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def lock(self) -> None:
        """Take the lock. Raises ConfigurationError if another process or another object has the lock."""
        if self._lock is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # The lock is a separate file, because each write replaces the properties file.
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            handle = os.open(f"{self.path}.lock", flags, 0o600)
        except OSError as error:
            raise ConfigurationError(
                f"{self.path}: {error.strerror}; set `directory` to a directory that this user can write to"
            ) from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise ConfigurationError(
                f"{self.path} is in use: another process of this host, or another issuer of this process, has the "
                "same machine number: give each process a machine number of its own"
            ) from error
        self._lock = handle

    def read(self) -> dict[str, str]:
        """Return the properties, {} if the file is missing. Raises CorruptState."""
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        except (OSError, UnicodeDecodeError) as error:
            raise CorruptState(f"{self.path} can't be read: {error}") from error
        pairs = [line.partition("=") for line in lines if line.strip() and line[0] not in "#!"]
        if any(not equals for _, equals, _ in pairs):
            raise CorruptState(
                f'{self.path} has a line without "=": correct the line. Or delete the file, but only if the clock of '
                "this machine is right: without the file, numbers start from the clock"
            )
        return {name.strip(): value.strip() for name, _, value in pairs}

    def write(self, properties: Mapping[str, object]) -> None:
        """Replace the file atomically and durably. Raises Unavailable; then the file is unchanged.

        Raises LockLost if the lock is missing before or after the write. Then the caller must not use the written
        values, because another process may have read the old ones.
        """
        self._check_lock()
        fresh = self.path.with_name(self.path.name + ".new")
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        try:
            handle = os.open(fresh, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
        except OSError as error:
            raise Unavailable(f"{self.path} can't be written: {error.strerror}") from error
        self._check_lock()

    def _check_lock(self) -> None:
        if self._lock is None:  # `unlock` was called, so another process may have the file
            raise LockLost(f"{self.path} is no longer locked by this process, so another process may use it")
        try:
            os.utime(self._lock)
            there = os.path.samestat(os.fstat(self._lock), Path(f"{self.path}.lock").stat())
        except FileNotFoundError:
            there = False
        except OSError as error:
            raise Unavailable(f"{self.path}.lock can't be checked: {error.strerror}") from error
        if not there:
            raise LockLost(
                f"{self.path}.lock was removed while this process held it, so another process may have its machine "
                "number; set the instance's `directory` to a directory that is never cleaned up"
            )

    def close(self, properties: Mapping[str, object]) -> None:
        try:
            self.write(properties)
        finally:
            self.unlock()

    @property
    def identity(self) -> str:
        """`device:inode` of the lock file. It is different in a copied directory. "" without the lock."""
        if self._lock is None:
            return ""
        found = os.fstat(self._lock)
        return f"{found.st_dev}:{found.st_ino}"

    def unlock(self) -> None:
        handle, self._lock = self._lock, None
        if handle is not None:
            os.close(handle)

    def forget(self) -> None:
        """Close the lock file in a forked child. This does not release the lock, which the parent keeps."""
        with suppress(OSError):
            self.unlock()


def whole(properties: Mapping[str, str], name: str, path: Path) -> int | None:
    """Return the property `name` as a whole number, 0 or more. None if it is missing. Raises CorruptState."""
    word = properties.get(name)
    if word is None:
        return None
    if not (word.isascii() and word.isdigit()):
        raise CorruptState(f"{path}: {name} is {word!r}, which is not a whole number")
    return int(word)
