"""A walk on `issuer.core.supply.extend` itself: its generators beside the model's processes, step by step.

Three extensions are under way at a time, on one real server, and a store; draws, floors, lost keys, rollbacks and
restored stores come between any two of their steps.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from redis.exceptions import NoScriptError

from issuer.core.steps import Ask, Send, Step, Steps
from issuer.core.supply.extend import ATTEMPTS, Extension, extend
from issuer.errors import IssuerError
from issuer.gateway import tag_scripts
from issuer.gateway.commands import RedisCall
from issuer_persistence.errors import StoreError
from tests.proofs.model import faults, processes, scripts
from tests.proofs.model.scripts import Hash
from tests.proofs.model.state import STORE, Process, State, World
from tests.proofs.model.store_walk import STEP, TAG
from tests.proofs.model.walk import Walk

AT_ONCE = 3


class Running:
    """An extension under way: the generator, and the step that it wants done next, None at its end."""

    def __init__(self, steps: Steps[Extension]) -> None:
        self.steps = steps
        self.wants: Step | None = next(steps)
        self.attempts = 1
        self.outcome = ""

    def __str__(self) -> str:
        match self.wants:
            case None:
                return f"ended: {self.outcome}"
            case Send(call):
                return "open" if call.decode is tag_scripts._opened else "load"
            case _:
                return "store"

    def go_on(self, result: object, error: StoreError | None = None) -> None:
        """Hand in what the step brought."""
        try:
            self.wants = self.steps.send(result) if error is None else self.steps.throw(error)
        except StopIteration as end:
            self.wants, self.outcome = None, end.value.outcome
        except (IssuerError, StoreError) as refusal:
            self.wants, self.outcome = None, type(refusal).__name__


class ExtensionWalk(Walk):
    """Elections are left out: each extension was elected, and whether one stands is not compared."""

    electing = 0
    steps: Mapping[str, int] = {
        "go_on": 60,
        "next": 30,
        "floor": 2,
        "key_is_lost": 2,
        "store_halts": 1,
        "store_recovers": 4,
        "backup": 2,
        "restore": 1,
    }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.running: list[Running | None] = [None] * AT_ONCE
        self.processes = [Process()] * AT_ONCE
        self.world = World({"restore": 1}, self.guards, highest=2**62, step=STEP)
        self.wanted = [0] * AT_ONCE

    def fields(self, hash: Hash | None) -> dict[str, str]:
        return super().fields(hash and hash._replace(asked=0))

    def compare(self) -> None:
        # Not compared here, so nobody needs it.
        self.tags[0].client.hdel(self.tags[0].key, "asked")
        super().compare()

    def go_on(self, _: int) -> None:
        at = self.chance.randrange(AT_ONCE)
        running = self.running[at]
        if running is None:
            seen = self.chance.choice((0, 0, self.nodes[0].hash.cur if self.nodes[0].hash else 0))
            record = self.store.get(TAG, timeout=1)
            assert record is not None
            wanted = self.wanted[at] = self.chance.choice((0, 0, STEP // 2, 2 * STEP + 1))
            steps = extend(
                record,
                self.tags[0].key,
                store_id=self.store.store_id(timeout=1),
                seen=seen,
                window=5,
                claimant=str(at),
                wanted=wanted,
            )
            self.running[at] = running = Running(steps)
            self.processes[at] = Process(last=seen)
            self.log[-1] = f"extension {at} begins, has seen {seen}"
            return
        done, was = self.processes[at].work.done, self.record.halted
        self.log[-1] = f"extension {at}, {done or 'at its beginning'}: {running}"
        self.modelled(at)
        self.perform(running)
        if done == "behind" and str(running) == "store":
            self.perform(running)  # it halts the tag, which the model does together with the second look
        self.settle(at)
        self.expect(at, running, done, halted=self.record.halted and not was)
        self.seen.add(str(running))
        if running.wants is None:
            self.running[at] = None

    def perform(self, running: Running) -> None:
        try:
            match running.wants:
                case Send(call):
                    running.go_on(self.send(call))
                case Ask(question):
                    running.go_on(question(self.store, 1.0))
                case other:
                    raise AssertionError(f"an extension neither waits nor sleeps: {other}")
        except StoreError as error:
            running.go_on(None, error)
        if isinstance(running.wants, Send) and b"resign" in running.wants.call.packed:
            self.perform(running)  # that much of elections is left: a lost hash is armed again
            self.put(0, scripts.open(self.nodes[0], self.guards, self.named(self.fresh()), STORE, "resign")[1])

    def send(self, call: RedisCall[Any]) -> Any:
        client = self.tags[0].client
        connection: Any = client.connection_pool.get_connection()
        try:
            connection.send_packed_command([call.packed])
            return call.decode(connection.read_response(disable_decoding=True))
        except NoScriptError:
            client.script_load(call.text)
            connection.send_packed_command([call.packed])
            return call.decode(connection.read_response(disable_decoding=True))
        finally:
            client.connection_pool.release(connection)

    # ------------------------------------------------------------------------------------------------ the model

    def modelled(self, at: int) -> None:
        """Do the same step in the model; a load arrives at once. With nobody else in between there is one way only."""
        state = State(self.record, tuple(self.nodes), tuple(self.processes), (0,))
        self.reply = ""
        world = replace(self.world, step=max(STEP, self.wanted[at]))
        ways = list(processes.extension(world, state, at))
        assert len(ways) <= 1, [label for label, *_ in ways]
        for label, after, _ in ways:
            self.reply, state = label, after
        for message in state.net:
            ((self.reply, state, _),) = faults.arrival(self.world, state._replace(net=()), message)
        self.nodes, self.processes, self.record = list(state.nodes), list(state.processes), state.store

    def settle(self, at: int) -> None:
        """Take over what only chance decides: the version, and the born of a hash that was armed just now."""
        self.record = self.record._replace(version=self.version())
        hash, work = self.nodes[0].hash, self.processes[at].work
        real = self.tags[0].field("born")
        if hash and real is not None and real not in self.names:
            if work.born == hash.born:
                self.processes[at] = self.processes[at]._replace(work=work._replace(born=self.named(real)))
            self.put(0, hash._replace(born=self.named(real)))

    def expect(self, at: int, running: Running, done: str, *, halted: bool) -> None:
        """What the real extension wants next is what the model's process does next."""
        match self.processes[at].work.done:
            case "opened":
                wanted = {"store"}
            case "behind":
                work = self.processes[at].work
                wanted = {"store" if work.low < self.processes[at].last else "open"}
            case "reserved":
                wanted = {"load"}
            case _:
                wanted = self.endings(done, halted=halted)
                if "open" in wanted and running.attempts == ATTEMPTS:
                    wanted = wanted - {"open"} | {"ended: stale"}
                running.attempts += 1
        wants = str(running)
        model = wants if wants in wanted else " or ".join(sorted(wanted))
        self.agree(f"what extension {at} wants next, after {self.reply}", wants, model)

    def endings(self, done: str, *, halted: bool) -> set[str]:
        """What may follow when the model's process has nothing begun any more."""
        if done == "opened":
            return {"ended: Halted"}
        if done == "behind":
            return {"ended: StoreBehind"} if halted else {"open", "ended: StoreBehind"}
        if done == "reserved":
            if "stale" in self.reply:
                return {"open"}
            return {"ended: ready"} if "full" in self.reply else {"ended: loaded"}
        return {"ended: ready"}
