"""A client's connection: each request gets one reply, in the order of the requests."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import sys
import termios
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from issuer.core.sparing import Sparing
from issuer.doors.access import Access
from issuer.doors.lookups import LookUps
from issuer.doors.resp import commands
from issuer.doors.resp.catalogue import OTHER, SPECS
from issuer.doors.resp.demand import Demand, ReplyQueue
from issuer.doors.resp.parsing import OF_BROWSERS, Parser, Request, is_incr
from issuer.doors.resp.refusals import unsupported, wrong_number
from issuer.doors.resp.replies import error, failure
from issuer.doors.resp.session import ClientInfo
from issuer.doors.resp.transaction import CommandQueue
from issuer.engine.aio import AsyncEngine
from issuer.errors import IssuerError, Unavailable

log = logging.getLogger("issuer.doors.resp")

#: Largest number of bytes in one read. All connections share one buffer of this size.
READ_MOST: Final = 65_536

#: If a client has this many INCRs without a reply, the server stops reading from it until half of them are answered.
UNANSWERED_MOST: Final = 1024

#: If a client leaves this many bytes of replies unread, the server stops reading from it until the client reads them.
#: While this many bytes of replies wait to be written, no command begins.
UNREAD_MOST: Final = 65_536

#: Seconds that a client has to read the last reply, which is the reason why its connection is closed. During this time,
#: the server reads and drops what the client sends: unread bytes would make the client's system discard the reply.
LINGER: Final = 1.0

#: Maximum time, in seconds, from connecting to authentication, if the server requires tokens.
AUTHENTICATING: Final = 10.0

#: Clients above the limit get an error before their connection is closed. At most this many clients, and at most a
#: quarter of the limit, get the error at the same time. Connections of further clients are closed without an error.
REFUSED_MOST: Final = 256


def ending(tag: str | None = None) -> IssuerError:
    """Return the error for clients that still wait when the server stops."""
    return Unavailable("the server is stopping", tag=tag)


@dataclass(slots=True)
class Shared:
    """State that all connections share. `most`: limit of clients. `ticks`: number of searches for idle clients."""

    access: Access
    engine: AsyncEngine
    look_ups: LookUps
    about: commands.About
    most: int
    loop: asyncio.AbstractEventLoop
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_MOST)))
    connections: set[Connection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    ticks: int = 0
    opened: int = 0
    #: Number of connected clients that are within the limit.
    served: int = 0
    #: Whether a stop has begun.
    draining: bool = False
    sparing: Sparing = field(default_factory=Sparing)
    #: Whether callers need no token.
    is_open: bool = field(init=False)
    #: How often each command was sent.
    commands: dict[str, int] = field(init=False)
    #: Called when the last connection is closed.
    emptied: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.is_open = self.access.is_open
        self.commands = self.access.tally.commands
        self.access.tally.connections["resp"] = lambda: len(self.connections)


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
        self._pending: deque[Request] = deque()
        self._replies = ReplyQueue()
        self.unanswered = 0
        #: Whether a command other than INCR waits for Redis or the store, or the tag of an INCR is being looked up.
        self._asking = False
        self._writable = True
        self._reading = True
        #: Whether to close the connection as soon as all commands are answered.
        self._ending = False
        #: Timer that closes the connection after the client has had time to read the last reply.
        self._farewell: asyncio.TimerHandle | None = None
        #: Timer that closes the connection if the client does not authenticate in time.
        self._authenticating: asyncio.TimerHandle | None = None
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
        #: The value of `Shared.ticks` when the client last sent something.
        self.heard = 0

    # ------------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Serve the client, or reject it if too many clients are connected."""
        shared = self._shared
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # a TCP server has this type
        transport.set_write_buffer_limits(high=UNREAD_MOST)  # type: ignore[attr-defined]  # as above
        peer = transport.get_extra_info("peername")
        address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""
        shared.opened += 1
        self._session = ClientInfo(shared.access, shared.opened, address)
        self.heard = shared.ticks
        self._served = shared.served < shared.most
        shared.connections.add(self)
        if self._served:
            shared.served += 1
            if not shared.is_open:
                self._authenticating = shared.loop.call_later(AUTHENTICATING, self._end_stranger)
        elif len(shared.connections) - shared.served > min(REFUSED_MOST, shared.most // 4 + 1):
            self.abort()
        else:
            self._dismiss(error("ERR max number of clients reached"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - the buffer has a fixed size
        """Return the buffer for the next bytes. The event loop fills it, and then calls `buffer_updated` at once."""
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Answer the requests in the bytes that have arrived."""
        self.heard = self._shared.ticks
        if self._ending:
            return
        data = bytes(self._shared.buffer[:nbytes])
        if data == self._same and not self._pending and not self._asking and self._parser.between:
            self._draw(self._same_tag, self._same_times)
            if self.unanswered and len(self._replies.waiting) == 1 and self.unanswered < UNANSWERED_MOST:
                return  # the queue of replies has only these INCRs, which wait for numbers: nothing can be written yet
        else:
            whole = self._parser.between  # the rest of an earlier read must not be remembered as a part of this one
            requests = self._parser.feed(data)
            if whole and self._parser.between and requests and self._transaction is None:
                self._remember(data, requests)
            self._pending.extend(requests)
            self._advance()
        self.flush()
        if self._pending or self.unanswered >= UNANSWERED_MOST or not self._writable or self._parser.fault:
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
        self._hold()

    def resume_writing(self) -> None:
        """Continue: the client has read its replies."""
        self._writable = True
        self._advance()
        self.flush()
        self._hold()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the reason changes nothing
        """Drop the state of the client. Numbers that are being drawn for the client will never be issued."""
        self.lost = True
        shared = self._shared
        for demand in self._replies.demands():
            if (combiner := shared.engine.combiners.get(demand.tag)) is not None:
                combiner.left = True
        self._pending.clear()
        self._replies.waiting.clear()
        shared.connections.discard(self)
        shared.served -= self._served
        for timer in (self._farewell, self._authenticating):
            if timer is not None:
                timer.cancel()
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

    def _end_stranger(self) -> None:
        if self._session.stranger and self._farewell is None:
            self._dismiss(error(f"NOAUTH no token was sent within {AUTHENTICATING:g} s"))

    def fail(self, error_: IssuerError) -> None:
        """Answer the INCRs that wait for numbers with this error, and drop the commands that have not begun."""
        self._pending.clear()
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
        self._pending.clear()
        self._transport.write(why)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._farewell = self._shared.loop.call_later(LINGER, self.abort)
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _unread(self) -> int:
        """Return how many bytes from the client wait in the system's buffer, not yet read by this server."""
        found = fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.FIONREAD, b"\0" * 4)
        return int.from_bytes(found, sys.byteorder)

    @property
    def idle(self) -> bool:
        """Whether no command of the client waits for its result. Replies that the client has not read do not count."""
        return not self.unanswered and not self._asking

    # ------------------------------------------------------------------ requests

    def _remember(self, data: bytes, requests: list[Request]) -> None:
        first = requests[0]
        if is_incr(first) and all(each == first for each in requests):
            try:
                self._same_tag = first[1].decode()
            except UnicodeDecodeError:
                return
            self._same, self._same_times = data, len(requests)

    def _advance(self) -> None:
        """Begin the next commands, up to the first that must wait."""
        pending = self._pending
        while (
            pending
            and self._writable
            and self._replies.packed < UNREAD_MOST
            and self.unanswered < UNANSWERED_MOST
            and not self._asking
            and not self.lost
        ):
            request = pending.popleft()
            try:
                if not self._begin(request):
                    pending.appendleft(request)
                    break
            except Exception as problem:  # noqa: BLE001 - the client gets the error
                self._replies.add(failure(problem))

    def _begin(self, request: Request) -> bool:
        """Begin a command, and return True. If earlier commands must be answered first, only return False."""
        if self._transaction is not None:
            return self._transact(self._transaction, request)
        if is_incr(request):
            self._incr(request)
            return True
        name = request[0].decode(errors="backslashreplace").upper()
        spec, arguments = SPECS.get(name), request[1:]
        if spec is None:
            self._unknown(request[0])
        elif not spec.takes(len(arguments)):
            self._replies.add(wrong_number(name))
        elif name == "INCR":
            self._incr([b"INCR", *arguments])
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
        self._parser.stranger = self._session.stranger
        if name == "MULTI":
            # Forget the data in `_same`: if it came again, `buffer_updated` would draw at once and not queue the INCRs.
            self._transaction, self._same = CommandQueue(), b""
        elif name == "QUIT":
            self._pending.clear()
            self._ending = True

    def _transact(self, transaction: CommandQueue, request: Request) -> bool:
        """Queue a command of a transaction, or end the transaction.

        Return True. Return False if nothing was done, because earlier commands must be answered first.
        """
        name = request[0].upper()
        if name in (b"QUIT", b"RESET"):
            self._transaction = None
            return self._begin(request)
        if name in (b"EXEC", b"DISCARD") and len(request) == 1:
            self._transaction = None
            self._shared.commands[name.decode()] += 1
            reply, requests = transaction.end(name)
            self._replies.add(reply)
            self._pending.extendleft(reversed(requests))
            return True
        try:
            self._session.caller()
        except IssuerError:
            transaction.refuse()
            raise
        self._replies.add(transaction.add(request))
        return True

    def _unknown(self, given: bytes) -> None:
        if given.upper() in OF_BROWSERS:
            said = "an HTTP request reached the Redis protocol port, perhaps from a web page: its connection was closed"
            self._shared.sparing.say(log.warning, "http", "", said)
            self._pending.clear()
            self._replies.waiting.clear()
            self._ending = True
            self.abort()
            return
        self._shared.commands[OTHER] += 1
        self._session.caller()
        self._replies.add(unsupported(given))

    # ------------------------------------------------------------------ numbers

    def _incr(self, request: Request) -> None:
        """Draw numbers for this INCR and for the equal INCRs that directly follow it."""
        times, pending = 1, self._pending
        while pending and pending[0] == request:
            pending.popleft()
            times += 1
        try:
            tag = commands.tag_of(request[1])
        except IssuerError as problem:
            self._replies.add(failure(problem) * times)
            return
        self._draw(tag, times)

    def _draw(self, tag: str, times: int) -> None:
        """Draw numbers for `times` INCRs of a tag. INCRs that the client's token does not allow get an error."""
        shared = self._shared
        shared.commands["INCR"] += times
        self.asked = True
        refusals = () if shared.is_open else self._refusals(tag, times)
        granted = times - len(refusals)
        if granted:
            demand = Demand(self, tag, granted)
            self.unanswered += granted
            self._replies.waiting.append(demand)
            combiner = shared.engine.combiners.get(tag)
            if combiner is None:
                self._look_up(demand)
            else:
                combiner.enqueue(demand)
        for refusal in refusals:
            self._replies.add(refusal)

    def _look_up(self, demand: Demand) -> None:
        """Look up the tag, then draw the numbers. Each client has at most one look-up at a time."""

        async def answer() -> None:
            await self._shared.look_ups.look_up(demand.tag, self._session.owner)
            if not self.lost:
                self._shared.engine.combiner(demand.tag).enqueue(demand)

        self._wait_for(answer, demand.fail)

    def _refusals(self, tag: str, times: int) -> Sequence[bytes]:
        """Return error replies for those of `times` INCRs that the client's token does not allow.

        If its rate allows only some of the INCRs, the first ones are allowed, and the last ones get the error.
        """
        try:
            granted, problem = self._session.caller().need_some("issue", tag, times)
        except IssuerError as refused:
            return [failure(refused)] * times
        return [] if problem is None else [failure(problem)] * (times - granted)

    def rejected(self, tag: str, error_: IssuerError) -> None:
        """Report to the engine that INCRs of the tag get this error."""
        self._shared.engine.refused(tag, error_)

    # ------------------------------------------------------------------ commands that wait

    def _ask(self, name: str, arguments: list[bytes]) -> None:
        self._shared.commands[name] += 1
        self.asked = True

        async def answer() -> None:
            self._replies.add(await commands.ASKING[name](self._session, self._shared.look_ups, arguments))

        self._wait_for(answer, lambda problem: self._replies.add(failure(problem)))

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
        while ready := self._replies.ready():
            if not self._transport.is_closing():
                self._transport.write(ready)
            if not self._pending:
                break
            self._advance()
        if not self._reading or self._ending or self._parser.fault or parting:
            self._end_or_read_on(parting=parting)

    def _end_or_read_on(self, *, parting: bool) -> None:
        done = not self._replies.waiting and not self._pending and not self._asking and not self.lost
        if done and self._ending:
            if self._farewell is None:
                self._transport.close()
        elif done and self._parser.fault:
            self._dismiss(error(f"ERR Protocol error: {self._parser.fault}"))
        elif done and parting and self._parser.between and not self._unread():
            self._dismiss(b"")  # this sends the replies held back by `_hold_back` together with the end of the data
            return
        elif not self._reading:
            self._hold()
        if parting:
            self._hold_back(held=False)

    def _hold_back(self, *, held: bool) -> None:
        """If `held` is True, make the system hold back written data, until the next call with `held=False`.

        In this way the client gets the last reply and the end of the connection at the same time.
        """
        if sys.platform == "linux" and not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, held)

    def _hold(self) -> None:
        """Stop reading from a client if it has too many unanswered INCRs or unread replies. Otherwise read again."""
        if self._ending or self.lost:
            return
        if self._parser.fault:
            self._stop_reading()
            return
        limit = UNANSWERED_MOST if self._reading else UNANSWERED_MOST // 2
        if self._pending or not self._writable or self.unanswered >= limit:
            self._stop_reading()
        elif not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()
