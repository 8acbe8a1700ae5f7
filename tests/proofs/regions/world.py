"""A central server, and regions that each have a Redis of their own and reach the server over a line."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, Self

from issuer.doors.tokens import line_for, new_token
from issuer_persistence.records import Tag, TagSettings
from issuer_persistence.sqlite import SQLiteStore
from tests.audit import Draw, order_violations, repeats
from tests.proofs.regions.drawer import TAGS
from tests.servers.ports import LOOPBACK, free_port
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer
from tests.servers.watchdog import launch
from tests.waiting import until


class Region:
    """A Redis, a line to the central server, and two processes that draw."""

    def __init__(self, name: str, folder: Path, binary: Path, port: int, rate: float) -> None:
        self.name, self.token = name, new_token()
        self.redis = RedisServer(binary)
        self.line = FaultProxy((LOOPBACK, port))
        self._folder, self._rate = folder, rate
        self._drawers: list[tuple[subprocess.Popen[bytes], Path, IO[bytes]]] = []

    @property
    def store(self) -> str:
        return f"issuer+http://{self.token}@{LOOPBACK}:{self.line.port}"

    def start(self) -> None:
        self.redis.start()
        for number in range(2):
            file = self._folder / f"{self.name}.{number}"
            log = file.open("wb")
            command = [sys.executable, "-m", "tests.proofs.regions.drawer", self.redis.url, self.store, str(self._rate)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT)
            self._drawers.append((process, file, log))

    def end(self) -> None:
        for process, _, _ in self._drawers:
            assert process.stdin is not None
            process.stdin.close()
        for process, file, log in self._drawers:
            assert process.wait(120) == 0, file.read_text()[-2000:]
            log.close()

    def kill(self) -> None:
        for process, _, log in self._drawers:
            process.kill()
            process.wait()
            log.close()

    def lines(self) -> list[list[str]]:
        return [line.split() for _, file, _ in self._drawers for line in file.read_text().splitlines()]

    def errors(self) -> list[str]:
        return [" ".join(each) for each in self.lines() if each[:1] in (["error"], ["Traceback"])]

    def draws(self, tag: str) -> list[Draw]:
        return [
            Draw(int(each[1]), *map(float, each[2:])) for each in self.lines() if each[:1] == [tag] and len(each) == 4
        ]

    def _count(self, tag: str) -> int:
        return sum(file.read_bytes().count(f"\n{tag} ".encode()) for _, file, _ in self._drawers)

    def go_on(self, more: int = 20) -> None:
        """Wait until each tag has so many numbers more."""
        before = {tag: self._count(tag) for tag in TAGS}
        until(
            lambda: all(self._count(tag) >= before[tag] + more for tag in TAGS),
            timeout=120,
            message=f"{self.name} goes on: {self.errors()[-3:]}",
        )


class World:
    def __init__(self, folder: Path, binary: Path, *, rate: float, step: int, survive: int = 0) -> None:
        """`rate`: numbers per second of each tag and process. `step`, `survive`: settings of the tags."""
        self._folder, self._file, self._port = folder, folder / "central.db", free_port()
        store = SQLiteStore(self._file)
        settings = {tag: TagSettings(order=tag, step=step, survive=survive) for tag in TAGS}  # type: ignore[arg-type]  # an order each
        store.create_many(settings, timeout=60)
        store.close()
        self.regions = [Region(name, folder, binary, self._port, rate) for name in ("east", "west")]
        self._tokens = folder / "tokens.toml"
        self._tokens.write_text(
            "".join(line_for(each.token, each.name, ["reserve"], [*TAGS]) + "\n" for each in self.regions)
        )
        self._tokens.chmod(0o600)

    def __enter__(self) -> Self:
        self.start()
        for each in self.regions:
            each.start()
        return self

    def __exit__(self, *given: object) -> None:
        for each in self.regions:
            each.line.close()
            each.redis.end()
            each.kill()
        self.kill()

    def start(self) -> None:
        """Start the central server, and wait until it serves."""
        log = self._folder / "serve"
        with log.open("wb") as file:
            self._central = launch(
                [
                    *("env", *(f"--unset={name}" for name in os.environ if name.startswith("ISSUER_"))),
                    *(sys.executable, "-m", "issuer", "--redis", "none", "--store", f"sqlite:///{self._file}"),
                    *("serve", "--http", f"{LOOPBACK}:{self._port}", "--tokens", str(self._tokens)),
                ],
                self._folder,
                file,
            )
        until(lambda: "serving " in log.read_text() or self._central.poll() is not None)
        assert self._central.poll() is None, log.read_text()

    def kill(self) -> None:
        if self._central.poll() is None:
            os.killpg(self._central.pid, signal.SIGKILL)
            self._central.wait()

    def end(self) -> None:
        for each in self.regions:
            each.end()

    def tag(self, name: str) -> Tag:
        store = SQLiteStore(self._file)
        found = store.get(name, timeout=60)
        store.close()
        assert found is not None
        return found

    def check(self) -> dict[str, int]:
        """Look at all that was drawn; return the count of each tag."""
        counts = {}
        for tag in TAGS:
            draws = [each.draws(tag) for each in self.regions]
            numbers = [one.number for region in draws for one in region]
            assert repeats(numbers) == []
            assert max(numbers) <= self.tag(tag).max
            if tag == "strict":
                assert [order_violations(each) for each in draws] == [[], []]
            counts[tag] = len(numbers)
        return counts
