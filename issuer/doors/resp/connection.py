"""A client's connection: each request gets one reply, in the order of the requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from issuer.doors.budget import Budget
from issuer.doors.resp import commands
from issuer.doors.resp.catalogue import OTHER, SPECS
from issuer.doors.resp.commands import tag_of
from issuer.doors.resp.demand import LONGEST, Demand, ReplyQueue
from issuer.doors.resp.parsing import OF_BROWSERS, MalformedError, Parser, Request, packed
from issuer.doors.resp.refusals import unsupported, wrong_number
from issuer.doors.resp.replies import error, failure
from issuer.doors.resp.session import ClientInfo
from issuer.doors.resp.shared import Shared, ending, hold_back, unread
from issuer.doors.resp.transaction import CommandQueue
from issuer.errors import InvalidArgument, IssuerError, Unauthenticated, Unavailable

log = logging.getLogger("issuer.doors.resp")

#: If a client has this many INCRs without a reply, the server stops reading from it until half of them are answered.
UNANSWERED_MOST: Final = 1024

#: While this many bytes of replies wait to be written, no command begins. Replies that the system does not take at once
#: stop the server from reading, until the client has read them.
UNREAD_MOST: Final = 65_536

#: After this many commands of one client, other clients get their turn. INCRs of a tag in a row are one command.
TURN: Final = 1024

#: The same while other clients wait for their turn.
SHORT_TURN: Final = 16

#: A client that sends more bytes at once waits for its turn while others do. Smaller requests go first.
SMALL: Final = 512

#: A client that has sent this many commands without a valid token is disconnected.
REFUSALS_MOST: Final = 16

#: Bytes that a client may make the server hold without a place in the budget of the worker.
FREE: Final = 2048

#: Bytes of a group of INCRs in memory while it waits for its numbers, beside the replies.
_DEMAND: Final = 200

#: Seconds that a client has to read the last reply, which is the reason why its connection is closed. During this time,
#: the server reads and drops what the client sends: unread bytes would make the client's system discard the reply.
LINGER: Final = 1.0

#: Clients above the limit get an error before their connection is closed. At most this many clients, and at most a
#: quarter of the limit, get the error at the same time. Connections of further clients are closed without an error.
REFUSED_MOST: Final = 256


class Connection(asyncio.BufferedProtocol):
    """A connection of one client.

    The numbers for the INCRs of a pipeline are drawn at the same time. Any other command that queries Redis or the
    store begins when all earlier commands are answered. Later commands wait until it is answered. So a pipeline has the
    same effect as its commands one by one.

    `unanswered`: how many INCRs have no reply yet. `lost`: whether the connection is closed.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._parser = Parser(stranger=not shared.is_open)
        #: Where the bytes are counted that this client makes the server hold, and how many they are.
        self._budget, self._held = shared.budget if shared.is_open else shared.budget.strangers, 0
        #: Number of commands without a valid token.
        self._refusals = 0
        self._replies = ReplyQueue()
        self.unanswered = 0
        #: Whether a command other than INCR waits for Redis or the store, or the tag of an INCR is being looked up.
        self._asking = False
        self._writable = True
        self._reading = True
        #: Whether this connection is in `Shared.turns`.
        self._waits_for_turn = False
        #: Whether to close the connection as soon as all commands are answered.
        self._ending = False
        #: The last reply, after which the connection is closed, because of a fault of the client. b"" if there is none.
        self._last = b""
        #: Timer that closes the connection after the client has had time to read the last reply.
        self._farewell: asyncio.TimerHandle | None = None
        #: The last data that consisted only of INCRs of one tag. Below it: this tag, and the number of these INCRs.
        #: Clients often send the same data again. The server then does not parse it.
        self._same = b""
        self._same_tag = ""
        self._same_times = 0
        #: The commands since MULTI.
        self._transaction: CommandQueue | None = None
        self.lost = False
        #: Whether the client has sent a command that draws or reads a tag. A stop (`RespServer.drain`) sets this to
        #: False. The next such command sets it to True, and the connection is closed with the reply to it.
        self.asked = False
        #: The values of `Shared.ticks` when the client last sent something, and when it was last seen to make progress.
        self._heard = self._moved = shared.ticks
        #: How often the client has made progress, now and when `look` was last called.
        self._pauses = self._progress = 0

    # ------------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the client, or reject it if too many clients are connected."""
        shared = self._shared
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # a TCP server has this type
        transport.set_write_buffer_limits(high=0)  # type: ignore[attr-defined]  # as above
        peer = transport.get_extra_info("peername")
        address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        shared.opened += 1
        self._session = ClientInfo(shared.access, shared.opened, address)
        self._served = shared.served < shared.most
        shared.connections.add(self)
        if self._served:
            shared.served += 1
        elif len(shared.connections) - shared.served > min(REFUSED_MOST, shared.most // 4 + 1):
            self.abort()
        else:
            self._dismiss(error("ERR max number of clients reached"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the buffer has a fixed size
        """Return the buffer for the next bytes. The event loop fills it, and then calls `buffer_updated` at once."""
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Answer the requests in the bytes that have arrived."""
        self._heard = self._shared.ticks
        if self._ending or self._last:
            return
        data, parser, replies = bytes(self._shared.buffer[:nbytes]), self._parser, self._replies
        if data == self._same and parser.between and not self._asking:
            self._draw(self._same_tag, self._same_times)
            if self.unanswered and len(replies.waiting) == 1 and replies.held <= FREE:
                return  # the queue of replies has only these INCRs, which wait for numbers: nothing can be written yet
        else:
            # The rest of an earlier read, and what is queued after MULTI, must not be remembered.
            fresh = data if parser.between and self._transaction is None else b""
            parser.feed(data)
            if nbytes > SMALL and self._shared.turns:
                self._wait_for_turn()
            else:
                self._advance(fresh)
        self.flush()
        if not parser.between or replies.held > FREE or not self._writable or self._transaction is not None:
            self._count()
            self._hold()

    def eof_received(self) -> bool:
        """Answer the commands, then close. A client such as `printf ... | nc` sends nothing more, but still reads."""
        if self._farewell is not None:
            return False
        self.end()
        return not self.lost

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its replies."""
        self._writable = False
        self._pauses += 1
        self._count()
        self._hold()

    def resume_writing(self) -> None:
        """Continue: the client has read its replies."""
        self._writable = True
        self._wait_for_turn()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """Drop the state of the client. Numbers that are being drawn for the client will never be issued."""
        self.lost = True
        shared = self._shared
        for demand in self._replies.demands():
            if (combiner := shared.engine.combiners.get(demand.tag)) is not None:
                combiner.left = True
        self._parser.drop()
        self._replies.waiting.clear()
        self._budget.hold(-self._held)
        self._held = 0
        shared.connections.discard(self)
        shared.served -= self._served
        if self._farewell is not None:
            self._farewell.cancel()
        if not shared.connections:
            shared.emptied()

    # ------------------------------------------------------------------ closing

    def end(self) -> None:
        """Read no more. Answer the commands that have arrived, then close the connection."""
        self._ending = True
        if self._farewell is not None:
            self.abort()
        self._stop_reading()
        self.flush()

    def look(self, idle: int, late: int) -> None:
        """Close the connection if the client sends nothing, or makes no progress.

        `idle`, `late`: number of calls for which a client may send nothing, and make no progress.
        """
        progress, ticks, stranger = self._parser.begun + self._pauses, self._shared.ticks, self._session.stranger
        incomplete = self._reading and not self._parser.between
        if not stranger and (progress != self._progress or (self._writable and not incomplete)):
            self._progress, self._moved = progress, ticks
        if ticks - self._heard > idle and self.idle:
            self.abort()
        elif ticks - self._moved > late and self._farewell is None:
            within = f"within {self._shared.progress:g} s"
            missing = "NOAUTH no token was sent" if stranger else "ERR no command was completed, or no reply read,"
            self._leave(error(f"{missing} {within}"))
            self.flush()

    def _leave(self, why: bytes) -> None:
        """Begin no more commands. Close the connection when all commands are answered, with the last reply `why`."""
        self._parser.drop()
        self._transaction, self._last = None, self._last or why
        self._stop_reading()

    def _failure(self, problem: BaseException) -> bytes:
        """Return the reply to a command that failed. A client that needs a token gets only so many."""
        if isinstance(problem, Unauthenticated):
            self._refusals += 1
            if self._refusals >= REFUSALS_MOST:
                self._leave(error(f"NOAUTH {REFUSALS_MOST} commands came without a valid token"))
        return failure(problem)

    def _count(self) -> None:
        """Count what this client makes the server hold. Close the connection if the budget is used up."""
        if self.lost:
            return
        held = self._parser.held + self._replies.held + _DEMAND * len(self._replies.waiting)
        if self._transaction is not None:
            held += len(self._transaction.packed)
        if not self._writable:
            held += self._transport.get_write_buffer_size()
        held = 0 if held <= FREE else held
        if held == self._held:
            return
        if self._budget.hold(held - self._held):
            self._held = held
        elif self._writable and not self._last:
            full = Unavailable("the clients of this server make it hold too many bytes", retry_after=1.0)
            self._shared.sparing.say(log.warning, "budget", "", "%s: a connection was closed", full)
            self._leave(failure(full))
            self.fail(full)
        else:
            self.abort()

    def fail(self, error_: IssuerError) -> None:
        """Answer the INCRs that wait for numbers with this error, and drop the commands that have not begun."""
        self._parser.drop()
        for demand in self._replies.demands():
            demand.fail(error_)
        self.flush()

    def abort(self) -> None:
        """Close the connection now, without sending the remaining replies."""
        if not self.lost:
            self._transport.abort()

    def _dismiss(self, why: bytes) -> None:
        """Send `why` as the last reply. Close the connection LINGER seconds later, so that the client can read it."""
        self._ending = True
        self._parser.drop()
        self._transport.write(why)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._farewell = self._shared.loop.call_later(LINGER, self.abort)
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()

    @property
    def idle(self) -> bool:
        """Whether no command of the client waits for its result. Replies that the client has not read do not count."""
        return not self.unanswered and not self._asking

    # ------------------------------------------------------------------ requests

    def _remember(self, data: bytes, request: Request) -> None:
        """Remember what was read if it consists of this INCR only, which may stand there several times."""
        if self._parser.times and self._parser.between:
            with suppress(UnicodeDecodeError):
                self._same_tag = request[1].decode()
                self._same, self._same_times = data, self._parser.times

    def _advance(self, fresh: bytes = b"") -> None:
        """Begin the next commands, up to the first that must wait, or until the client's turn ends.

        `fresh`: the bytes of the last read, if they begin a request and may be remembered.
        """
        parser, replies = self._parser, self._replies
        for _ in range(SHORT_TURN if self._shared.turns else TURN):
            if (
                not parser.more
                or not self._writable
                or replies.held >= UNREAD_MOST
                or self.unanswered >= UNANSWERED_MOST
                or self._asking
                or self.lost
            ):
                return
            try:
                request = parser.next()
                if request is None:
                    return
                if fresh:
                    self._remember(fresh, request)
                    fresh = b""
                if parser.times and self._transaction is None:
                    self._incr(request, parser.times)
                elif not self._begin(request):
                    parser.insert(packed(request))
                    return
            except MalformedError as fault:
                self._leave(error(f"ERR Protocol error: {fault}"))
            except Exception as problem:  # noqa: BLE001 - the client gets the error
                replies.add(self._failure(problem))
        self._wait_for_turn()

    def _wait_for_turn(self) -> None:
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._shared.wait_for_turn(self)

    def go_on(self) -> None:
        """Begin the commands that have waited for a turn, or for replies to earlier commands."""
        self._waits_for_turn = False
        if not self.lost:
            self._advance()
            self.flush()
            self._hold()

    def _begin(self, request: Request) -> bool:
        """Begin a command, and return True. If earlier commands must be answered first, only return False."""
        if self._transaction is not None:
            self._transact(self._transaction, request)
            return True
        name = request[0].decode(errors="backslashreplace").upper()
        spec, arguments = SPECS.get(name), request[1:]
        if spec is None:
            self._unknown(request[0])
        elif not spec.takes(len(arguments)):
            self._replies.add(wrong_number(name))
        elif name == "INCR":
            self._incr(request, 1)
        elif name in commands.ASKING:
            if self._replies.waiting:
                return False
            self._session.caller()
            self._ask(name, arguments)
        else:
            self._answer(name, arguments, early=spec.early)
        return True

    def _answer(self, name: str, arguments: list[bytes], *, early: bool) -> None:
        if not early:
            self._session.caller()
        self._shared.commands[name] += 1
        self._replies.add(commands.AT_ONCE[name](self._session, self._shared.about, arguments))
        if early:
            self._parser.stranger = self._session.stranger
            self._move(self._shared.budget.strangers if self._session.stranger else self._shared.budget)
        if name == "MULTI":
            # Forget the data in `_same`: if it came again, `buffer_updated` would draw at once and not queue the INCRs.
            self._transaction, self._same = CommandQueue(), b""
        elif name == "QUIT":
            self._parser.drop()
            self._ending = True

    def _move(self, budget: Budget) -> None:
        """Count what the client makes the server hold in this budget from now on."""
        self._budget.hold(-self._held)
        self._budget, self._held = budget, 0

    def _transact(self, transaction: CommandQueue, request: Request) -> None:
        """Queue a command of a transaction, or end the transaction."""
        name = request[0].upper()
        if name in (b"QUIT", b"RESET"):
            self._transaction = None
            self._begin(request)
        elif name in (b"EXEC", b"DISCARD") and len(request) == 1:
            self._transaction = None
            self._shared.commands[name.decode()] += 1
            reply, requests = transaction.end(name)
            self._replies.add(reply)
            self._parser.insert(requests)
        else:
            try:
                self._session.caller()
            except IssuerError:
                transaction.refuse()
                raise
            self._replies.add(transaction.add(request, max(1, self._parser.times)))

    def _unknown(self, given: bytes) -> None:
        if given.upper() in OF_BROWSERS:
            said = "an HTTP request reached the Redis protocol port, perhaps from a web page: its connection was closed"
            self._shared.sparing.say(log.warning, "http", "", said)
            self._parser.drop()
            self._replies.waiting.clear()
            self._ending = True
            self.abort()
            return
        self._shared.commands[OTHER] += 1
        self._session.caller()
        self._replies.add(unsupported(given))

    # ------------------------------------------------------------------ numbers

    def _incr(self, request: Request, times: int) -> None:
        """Draw numbers for this INCR and for the equal INCRs that directly follow it."""
        try:
            tag = tag_of(request[1])
        except InvalidArgument as problem:
            self._replies.add(failure(problem) * times)
            return
        self._draw(tag, times)

    def _draw(self, tag: str, times: int) -> None:
        """Draw numbers for `times` INCRs of a tag. INCRs that the client's token does not allow get an error."""
        shared, granted, refusals = self._shared, times, b""
        shared.commands["INCR"] += times
        self.asked = True
        if not shared.is_open:
            granted, refusals = self._allowed(tag, times)
        if granted:
            demand = Demand(self, tag, granted)
            self.unanswered += granted
            replies = self._replies
            replies.waiting.append(demand)
            replies.held += granted * LONGEST
            combiner = shared.engine.combiners.get(tag)
            if combiner is None:
                self._look_up(demand)
            else:
                combiner.enqueue(demand)
        if refusals:
            self._replies.add(refusals)

    def _look_up(self, demand: Demand) -> None:
        """Look up the tag, then draw the numbers. Each client has at most one look-up at a time."""

        async def answer() -> None:
            await self._shared.look_ups.look_up(demand.tag, self._session.owner)
            if not self.lost:
                self._shared.engine.combiner(demand.tag).enqueue(demand)

        self._wait_for(answer, demand.fail)

    def _allowed(self, tag: str, times: int) -> tuple[int, bytes]:
        """Return how many of `times` INCRs the client's token allows, and error replies for the others.

        If its rate allows only some of the INCRs, the first ones are allowed, and the last ones get the error.
        """
        try:
            granted, problem = self._session.caller().need_some("issue", tag, times)
        except IssuerError as refused:
            return 0, self._failure(refused) * times
        return granted, b"" if problem is None else failure(problem) * (times - granted)

    def rejected(self, tag: str, error_: IssuerError) -> None:
        """Report to the engine that INCRs of the tag get this error."""
        self._shared.engine.refused(tag, error_)

    # ------------------------------------------------------------------ commands that wait

    def _ask(self, name: str, arguments: list[bytes]) -> None:
        self._shared.commands[name] += 1
        self.asked = True

        async def answer() -> None:
            self._replies.add(await commands.ASKING[name](self._session, self._shared.look_ups, arguments))

        self._wait_for(answer, lambda problem: self._replies.add(self._failure(problem)))

    def _wait_for(self, answer: Callable[[], Awaitable[None]], fail: Callable[[BaseException], None]) -> None:
        """Run `answer` in a task, and call `fail` with its error. Later commands begin only after the task."""

        async def answered() -> None:
            try:
                await answer()
            except asyncio.CancelledError:
                fail(ending())
            except Exception as problem:  # noqa: BLE001 - the client gets the error
                fail(problem)
            self._asking = False
            if not self.lost:
                self.flush()

        self._asking = True
        task = self._shared.loop.create_task(answered())
        self._shared.tasks.add(task)
        task.add_done_callback(self._shared.tasks.discard)

    # ------------------------------------------------------------------ replies

    def flush(self) -> None:
        """Write the next replies if they are ready, and begin the commands that waited for these replies."""
        parting = self._shared.draining and self.asked
        if parting:
            self._hold_back(held=True)
        if ready := self._replies.ready():
            if not self._transport.is_closing():
                self._transport.write(ready)
            if self._parser.more:
                if not self._shared.turns:
                    self._advance()
                if self._replies.waiting or self._shared.turns:
                    self._wait_for_turn()
        if not self._reading or self._held or self._ending or self._last or parting:
            self._end_or_read_on(parting=parting)

    def _end_or_read_on(self, *, parting: bool) -> None:
        self._count()
        done = not self._replies.waiting and not self._parser.more and not self._asking and not self.lost
        if done and self._ending:
            if self._farewell is None:
                self._transport.close()
        elif done and self._last:
            self._dismiss(self._last)
        elif done and parting and self._parser.between and not unread(self._transport.get_extra_info("socket")):
            self._dismiss(b"")  # this sends the replies held back by `_hold_back` together with the end of the data
            return
        elif not self._reading:
            self._hold()
        if parting:
            self._hold_back(held=False)

    def _hold_back(self, *, held: bool) -> None:
        if not self._transport.is_closing():
            hold_back(self._transport.get_extra_info("socket"), held=held)

    def _hold(self) -> None:
        """Stop reading from a client if it has too many unanswered INCRs or unread replies. Otherwise read again."""
        if self._ending or self._last or self.lost:
            return
        most = UNANSWERED_MOST if self._reading else UNANSWERED_MOST // 2
        full = self.unanswered >= most or self._replies.held >= UNREAD_MOST or not self._writable
        if full or self._parser.more:
            self._stop_reading()
        elif not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()
