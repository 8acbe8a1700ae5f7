"""A client's connection: each request gets one reply, in the order of the requests."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import sys
import termios
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Final

from issuer.doors.budget import Budget
from issuer.doors.resp.catalogue import Spec, unsupported
from issuer.doors.resp.commands import SPECS, not_text
from issuer.doors.resp.demand import LONGEST, Demand, ReplyQueue
from issuer.doors.resp.parsing import FREE, OF_BROWSERS, MalformedError, Parser, Request, packed
from issuer.doors.resp.replies import OK, error, failure
from issuer.doors.resp.shared import ClientInfo, Shared
from issuer.doors.resp.transaction import QUEUED, CommandQueue
from issuer.errors import IssuerError, Unauthenticated, Unavailable

log = logging.getLogger("issuer.doors.resp")

#: While this many bytes of replies wait to be written, no command begins, and the server does not read from the client.
#: A number that is not drawn yet counts as the longest one. Replies that the system does not take at once also stop the
#: server from reading, until the client has read them.
UNREAD_MOST: Final = 65_536

#: After this many commands of one client, other clients get their turn. INCRs of a tag in a row are one command.
TURN: Final = 1024

#: The same while other clients wait for their turn.
SHORT_TURN: Final = 16

#: A client that sends more bytes at once waits for its turn while others do. Smaller requests go first.
SMALL: Final = 512

#: A client that has sent this many commands without a valid token is disconnected.
REFUSALS_MOST: Final = 16

#: More bytes than TLS sends after its handshake, before the first reply: two session tickets of about 250 bytes each.
_TLS_HANDSHAKE: Final = 4096
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
    same effect as its commands one by one. `lost`: whether the connection is closed.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._parser = Parser(stranger=not shared.is_open)
        #: The budget from which this client takes memory of the server, and how many bytes it has taken.
        self._budget, self._held = shared.budget if shared.is_open else shared.budget.strangers, 0
        #: Number of commands without a valid token.
        self._refusals = 0
        self._replies = ReplyQueue()
        #: Whether a command other than INCR waits for Redis or the store, or the tag of an INCR is being looked up.
        self._asking = False
        self._writable = self._reading = True
        #: If the connection will be closed when all commands are answered: the last reply, or b"" if there is none.
        self._last: bytes | None = None
        #: Timer that closes the connection after the client has had time to read the last reply.
        self._farewell: asyncio.TimerHandle | None = None
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
        # The end of a TLS handshake waits in the buffer. If it counted, reading would stop before it is sent.
        high = _TLS_HANDSHAKE if transport.get_extra_info("sslcontext") else 0
        transport.set_write_buffer_limits(high=high)  # type: ignore[attr-defined]  # as above
        peer = transport.get_extra_info("peername")
        address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        shared.opened += 1
        self._session = ClientInfo(shared, shared.opened, address)
        self._served = shared.served < shared.most
        shared.connections.add(self)
        if self._served:
            shared.served += 1
        elif len(shared.connections) - shared.served > min(REFUSED_MOST, shared.most // 4 + 1):
            self.abort()
        else:
            self._leave(error("ERR max number of clients reached"))
            self.flush()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the buffer has a fixed size
        """Return the buffer for the next bytes. The event loop fills it, and then calls `buffer_updated` at once."""
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Answer the requests in the bytes that have arrived."""
        self._heard = self._shared.ticks
        if self._last is not None:
            return
        data, parser, replies = bytes(self._shared.buffer[:nbytes]), self._parser, self._replies
        begins = parser.between and self._transaction is None and not self._asking
        if begins and (data == parser.same or parser.is_row(data)):
            times = parser.same_times
            queued = not parser.same_multi or self._queue_all(times)
            if queued and self._draw(parser.same_request, times) and replies.held <= FREE:
                return  # all replies in the queue are sent when the INCRs that wait get their numbers
        else:
            parser.feed(data)
            if nbytes > SMALL and self._shared.turns:
                self._shared.wait_for_turn(self)
            else:
                self._advance()
        self.flush()
        if not parser.between or replies.held > FREE or not self._writable or self._transaction is not None:
            self._hold()

    def eof_received(self) -> bool:
        """Answer the commands, then close. A client such as `printf ... | nc` sends nothing more, but still reads."""
        if self._farewell is None:
            self.end()
        return self._farewell is None and self._transport.can_write_eof()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its replies."""
        self._writable = False
        self._pauses += 1
        self._hold()

    def resume_writing(self) -> None:
        """Continue: the client has read its replies."""
        self._writable = True
        self._shared.wait_for_turn(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """Drop the state of the client. Numbers that are being drawn for the client will never be issued."""
        self.lost = True
        shared = self._shared
        for demand in self._replies.demands():
            demand.reply = b""
            if (combiner := shared.engine.combiners.get(demand.tag)) is not None:
                combiner.left = True
        self._parser.drop()
        self._replies.waiting.clear()
        self._move(shared.budget)
        shared.connections.discard(self)
        shared.served -= self._served
        if self._farewell is not None:
            self._farewell.cancel()
        if not shared.connections:
            shared.emptied.set()

    # ------------------------------------------------------------------ closing

    def end(self) -> None:
        """Read no more. Answer the commands that have arrived, then close the connection."""
        if self._farewell is not None:
            self.abort()
            return
        self._last = self._last or b""
        self._read(on=False)
        self.flush()

    def look(self, idle: int, late: int) -> None:
        """Close the connection if the client sends nothing, or makes no progress.

        `idle`, `late`: number of calls for which a client may send nothing, and make no progress.
        """
        progress, ticks, stranger = self._parser.begun + self._pauses, self._shared.ticks, self._session.stranger
        incomplete = self._reading and not self._parser.between
        if not stranger and (progress != self._progress or (self._writable and not incomplete)):
            self._progress, self._moved = progress, ticks
        if ticks - self._heard > idle and not self._replies.waiting and not self._asking:
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
        self._read(on=False)

    def _refuse(self, problem: BaseException, times: int = 1) -> None:
        """Add the replies to commands that failed. A client that needs a token gets them only a few times."""
        self._replies.add(failure(problem) * times)
        if isinstance(problem, Unauthenticated):
            self._refusals += 1
            if self._refusals >= REFUSALS_MOST:
                self._leave(error(f"NOAUTH {REFUSALS_MOST} commands came without a valid token"))

    def fail(self, error_: IssuerError) -> None:
        """Answer the INCRs that wait for numbers with this error, and drop the commands that have not begun."""
        self._parser.drop()
        for demand in self._replies.demands():
            demand.fail(error_)
        self.flush()

    def abort(self) -> None:
        """Close the connection now, without sending the remaining replies."""
        self._parser.drop()
        self._transport.abort()

    # ------------------------------------------------------------------ requests

    def _advance(self) -> None:
        """Begin the next commands, up to the first that must wait, or until the client's turn ends."""
        parser, replies = self._parser, self._replies
        for _ in range(SHORT_TURN if self._shared.turns else TURN):
            if not parser.more or not self._writable or replies.held >= UNREAD_MOST or self._asking:
                return
            try:
                request = parser.next()
                if request is None:
                    return
                if self._transaction is not None:
                    self._transact(self._transaction, request)
                elif parser.times:
                    self._draw(request, parser.times)
                elif not self._begin(request):
                    parser.insert(packed(request))
                    return
            except MalformedError as fault:
                self._leave(error(f"ERR Protocol error: {fault}"))
            except Exception as problem:  # noqa: BLE001 - the client gets the error
                self._refuse(problem)
        self._shared.wait_for_turn(self)

    def go_on(self) -> None:
        """Begin the commands that have waited for a turn, or for replies to earlier commands."""
        if not self.lost:
            self._advance()
            self.flush()
            self._hold()

    def _begin(self, request: Request) -> bool:
        """Begin a command, and return True. If earlier commands must be answered first, only return False."""
        name = request[0].decode(errors="backslashreplace").upper()
        spec, arguments = SPECS.get(name), request[1:]
        if spec is None:
            self._unknown(request[0])
        elif refused := spec.refused(len(arguments)):
            self._replies.add(refused)
        elif spec.tags and self._replies.waiting:
            return False
        else:
            self._shared.commands[name] += 1
            if spec.tags:
                self.asked = True
                self._wait_for(partial(self._ask, spec, arguments), self._refuse)
            else:
                self._answer(spec, arguments)
        return True

    def _answer(self, spec: Spec, arguments: list[bytes]) -> None:
        if not spec.early:
            self._session.caller()
        reply = spec.run(self._session, arguments)
        if spec.name == "QUIT":
            self._leave(reply)
            return
        self._replies.add(reply)
        if spec.name == "MULTI":
            self._transaction = CommandQueue()
        elif spec.early:
            self._parser.stranger = self._session.stranger
            self._move(self._shared.budget.strangers if self._session.stranger else self._shared.budget)

    def _transact(self, transaction: CommandQueue, request: Request) -> None:
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
            self.abort()
            return
        self._shared.commands["other"] += 1  # one name for all in the metrics
        self._session.caller()
        self._replies.add(unsupported(given))

    def _queue_all(self, times: int) -> bool:
        """Answer MULTI, the queueing of so many INCRs, and the beginning of EXEC. Return False if all are refused."""
        commands = self._shared.commands
        commands["MULTI"] += 1
        commands["EXEC"] += 1
        try:
            self._session.caller()
        except IssuerError as refused:
            commands["INCR"] += times
            self._refuse(refused, times + 2)
            return False
        self._replies.add(OK + QUEUED * times + b"*%d\r\n" % times)
        return True

    def _draw(self, request: Request, times: int) -> bool:
        """Return whether the INCRs wait for numbers. Those above the rate of the client's token get the error."""
        shared, replies, granted, waits = self._shared, self._replies, times, False
        problem: IssuerError | None = None
        shared.commands["INCR"] += times
        self.asked = True
        try:
            tag = request[1].decode()
            if not shared.is_open:
                granted, problem = self._session.caller().need_some("issue", tag, times)
        except IssuerError as refused:
            self._refuse(refused, times)
            return False
        except UnicodeDecodeError:
            self._refuse(not_text(request[1]), times)
            return False
        if granted:
            combiner = shared.engine.combiners.get(tag)
            numbers = [] if combiner is None else combiner.from_memory(granted)
            if numbers:
                replies.add(b":%d\r\n" * len(numbers) % tuple(numbers))
            if waits := len(numbers) < granted:
                demand = Demand(self, tag, granted - len(numbers))
                replies.waiting.append(demand)
                replies.held += demand.n * LONGEST
                if combiner is None:
                    self._wait_for(partial(self._look_up, demand), demand.fail)
                else:
                    combiner.enqueue(demand)
        if problem is not None:
            self._refuse(problem, times - granted)
        return waits

    async def _look_up(self, demand: Demand) -> None:
        """Look up the tag, then draw the numbers. Each client has at most one look-up at a time."""
        await self._shared.look_ups.look_up(demand.tag, self._session.owner)
        if not demand.done():
            self._shared.engine.combiner(demand.tag).enqueue(demand)

    def rejected(self, tag: str, error_: IssuerError) -> None:
        """Report to the engine that INCRs of the tag get this error."""
        self._shared.engine.refused(tag, error_)

    async def _ask(self, spec: Spec, arguments: list[bytes]) -> None:
        self._replies.add(await spec.run(self._session, arguments))

    def _wait_for(self, answer: Callable[[], Awaitable[None]], fail: Callable[[BaseException], None]) -> None:
        """Run `answer` in a task, and call `fail` with its error. Later commands begin only after the task."""

        async def answered() -> None:
            try:
                await answer()
            except asyncio.CancelledError:
                fail(Unavailable("the server is stopping"))
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
                    self._shared.wait_for_turn(self)
        if self._held or self._last is not None or parting or not (self._reading or self._asking):
            self._end_or_read_on(parting=parting)

    def _end_or_read_on(self, *, parting: bool) -> None:
        self._hold()
        busy = self._replies.waiting or self._parser.more or self._asking
        if busy or self._farewell is not None or self._transport.is_closing():
            pass
        elif self._last == b"":
            self._transport.close()
        elif self._last or (parting and self._parser.between and not self._unread()):
            self._last = self._last or b""
            self._transport.write(self._last)
            if self._transport.can_write_eof():
                self._transport.write_eof()  # this also sends the replies held back
                self._farewell = self._shared.loop.call_later(LINGER, self._transport.abort)
                self._read(on=True)
            else:  # TLS has no end of one direction
                below = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
                self._transport.close()
                self._shared.loop.call_soon(_end_tcp, below)
            return
        if parting:
            self._hold_back(held=False)

    def _hold_back(self, *, held: bool) -> None:
        """If `held`, hold back written data: the client gets the last reply and the end of the connection together."""
        if sys.platform == "linux" and self._session.address and not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, held)

    def _unread(self) -> bool:
        """Return whether bytes from the client wait in the system's buffer, not yet read by this server."""
        connected = self._transport.get_extra_info("socket")
        return any(fcntl.ioctl(connected.fileno(), termios.FIONREAD, b"\0" * 4))

    # ------------------------------------------------------------------ what the client makes the server hold

    def _hold(self) -> None:
        """Count what is held. Stop reading if it is too much, or commands wait. Otherwise read again."""
        self._count()
        if self._last is None and not self._transport.is_closing():
            full = self._replies.held >= UNREAD_MOST or not self._writable
            self._read(on=not full and not self._parser.more)

    def _read(self, *, on: bool) -> None:
        if on != self._reading:
            self._reading = on
            (self._transport.resume_reading if on else self._transport.pause_reading)()

    def _count(self) -> None:
        """Count what this client makes the server hold. Close the connection if the budget is used up."""
        held = self._parser.held + self._replies.held + _DEMAND * len(self._replies.waiting)
        if self._transaction is not None:
            held += len(self._transaction.packed)
        if not self._writable:
            held += self._transport.get_write_buffer_size()
        held = 0 if held <= FREE else held
        if held == self._held or self.lost:
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

    def _move(self, budget: Budget) -> None:
        self._budget.hold(-self._held)
        self._budget, self._held = budget, 0


def _end_tcp(below: socket.socket) -> None:
    """End the TCP connection below TLS, after all that was held back: some clients look only for this end."""
    with below, suppress(OSError):
        below.shutdown(socket.SHUT_WR)
