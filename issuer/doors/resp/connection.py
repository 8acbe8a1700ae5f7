"""A client's connection: its requests in, one reply to each out, in the same order."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from issuer.core.sparing import Sparing
from issuer.doors.access import Access
from issuer.doors.lookups import LookUps
from issuer.doors.resp import commands
from issuer.doors.resp.catalogue import OTHER, SPECS
from issuer.doors.resp.drawing import Demand, Drawing, ending
from issuer.doors.resp.parsing import OF_BROWSERS, Parser, Request, is_incr
from issuer.doors.resp.replies import error, failure
from issuer.doors.resp.session import ClientInfo
from issuer.doors.resp.transaction import CommandQueue
from issuer.errors import IssuerError

log = logging.getLogger("issuer.doors.resp")

#: Bytes that one read brings at most, of whichever connection: all share one buffer.
READ_MOST: Final = 65_536

#: A client with this many commands unanswered is read from again when it has half as many.
UNANSWERED_MOST: Final = 1024

#: A client that doesn't read is read from again when it has taken its replies but for this many bytes. With as many
#: packed that can't be written yet, nothing more is begun.
UNREAD_MOST: Final = 65_536

#: Seconds that a client has to read why it is closed. What it has sent and is not read would have its system drop
#: the reply: so it is read, and thrown away.
LINGER: Final = 1.0

#: Seconds that a client has to authenticate, where tokens are in force.
AUTHENTICATING: Final = 10.0

#: Clients beyond the most that may be connected are told so, up to this many at a time, and a quarter of the others.
REFUSED_MOST: Final = 256


@dataclass(slots=True)
class Shared:
    """All that the connections of a server share. `ticks`: goes up now and then, by which idle ones are found."""

    access: Access
    look_ups: LookUps
    drawing: Drawing
    about: commands.About
    most: int
    loop: asyncio.AbstractEventLoop
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_MOST)))
    connections: set[Connection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    ticks: int = 0
    opened: int = 0
    #: Clients that were not refused.
    served: int = 0
    #: Whether a stop has begun.
    draining: bool = False
    sparing: Sparing = field(default_factory=Sparing)
    #: Whether callers need no token.
    is_open: bool = field(init=False)
    #: How often each command was sent.
    commands: dict[str, int] = field(init=False)
    #: Called when the last connection is gone.
    emptied: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.is_open = self.access.is_open
        self.commands = self.access.tally.commands
        self.access.tally.connections["resp"] = lambda: len(self.connections)


class Connection(asyncio.BufferedProtocol):
    """A connection of one client.

    A request that has to ask is begun when all before it are answered, and those after it wait for it; only INCRs go
    on side by side. So a pipeline means the same as its commands one by one.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._parser = Parser(stranger=not shared.is_open)
        self._pending: deque[Request] = deque()
        #: Replies in the order of the requests: packed, or yet to come.
        self._replies: deque[bytes | Demand] = deque()
        #: Bytes of those that are packed, INCRs aside.
        self._packed = 0
        #: INCRs that have no reply yet; whether another command waits for its own.
        self._unanswered = 0
        self._asking = False
        self._writable = True
        self._reading = True
        #: Whether it is closed once all that was asked is answered.
        self._ending = False
        #: Ends the time that a client has to read why it is closed.
        self._farewell: asyncio.TimerHandle | None = None
        #: Ends the time that it has to authenticate.
        self._authenticating: asyncio.TimerHandle | None = None
        #: What came last, if it was nothing but INCRs of one tag, and how many: clients that draw say the same again.
        self._same = b""
        self._same_tag = ""
        self._same_times = 0
        #: What was sent since MULTI.
        self._transaction: CommandQueue | None = None
        self.lost = False
        #: Whether it has sent a command that draws or reads a tag, since a stop has begun if one has.
        self.asked = False
        #: The tick in which it was heard last.
        self.heard = 0

    # ------------------------------------------------------------------ called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or refuse it if there are too many."""
        shared = self._shared
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # a TCP server's are of this kind
        transport.set_write_buffer_limits(high=UNREAD_MOST)  # type: ignore[attr-defined]  # the same
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

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - what is there is read, up to the buffer's size
        """Return where the loop puts what it reads, right before it calls `buffer_updated`."""
        return self._shared.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Answer the requests that have come."""
        self.heard = self._shared.ticks
        if self._ending:
            return
        data = bytes(self._shared.buffer[:nbytes])
        if data == self._same and not self._pending and not self._asking and self._parser.between:
            self._draw(self._same_tag, self._same_times)
            if self._unanswered and len(self._replies) == 1 and self._unanswered < UNANSWERED_MOST:
                return  # there is nothing but this to wait for
        else:
            requests = self._parser.feed(data)
            if self._parser.between and requests and self._transaction is None:
                self._remember(data, requests)
            self._pending.extend(requests)
            self._advance()
        self.flush()
        if self._pending or self._unanswered >= UNANSWERED_MOST or not self._writable or self._parser.fault:
            self._hold()

    def eof_received(self) -> bool:
        """Answer what was asked, then close: `printf ... | nc` has nothing more to say, and reads yet."""
        if self._farewell is not None:
            return False
        self.end()
        return not self.lost

    def pause_writing(self) -> None:
        """Read nothing from a client that doesn't read its replies."""
        self._writable = False
        self._hold()

    def resume_writing(self) -> None:
        """Go on, as the client has read."""
        self._writable = True
        self._advance()
        self.flush()
        self._hold()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - how it ended changes nothing
        """Forget the client: numbers that are being drawn for it are gaps."""
        self.lost = True
        self._pending.clear()
        self._replies.clear()
        shared = self._shared
        shared.connections.discard(self)
        shared.served -= self._served
        for timer in (self._farewell, self._authenticating):
            if timer is not None:
                timer.cancel()
        if not shared.connections:
            shared.emptied()

    # ------------------------------------------------------------------ the end

    def end(self) -> None:
        """Answer the requests that are there, take no more, then close."""
        self._ending = True
        if self._farewell is not None:
            self.abort()
        self._stop_reading()
        self.flush()

    def _end_stranger(self) -> None:
        if self._session.stranger and self._farewell is None:
            self._dismiss(error(f"NOAUTH no token was sent within {AUTHENTICATING:g} s"))

    def abort(self) -> None:
        """Close it now."""
        if not self.lost:
            self._transport.abort()

    def _dismiss(self, why: bytes) -> None:
        """Close it, once the client has had time to read why."""
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
        """Return how many bytes have come that no read has brought yet: of a pipeline, the rest of it."""
        found = fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.FIONREAD, b"\0" * 4)
        return int.from_bytes(found, sys.byteorder)

    @property
    def idle(self) -> bool:
        """Whether no command of its client is under way; what it has not read counts for nothing."""
        return not self._unanswered and not self._asking

    # ------------------------------------------------------------------ requests

    def _remember(self, data: bytes, requests: list[Request]) -> None:
        first = requests[0]
        # One by one, as a name may be written in several ways.
        if is_incr(first) and all(each == first for each in requests):
            try:
                self._same_tag = first[1].decode()
            except UnicodeDecodeError:
                return
            self._same, self._same_times = data, len(requests)

    def _advance(self) -> None:
        """Begin all requests that can be begun now."""
        pending = self._pending
        while (
            pending
            and self._writable
            and self._packed < UNREAD_MOST
            and self._unanswered < UNANSWERED_MOST
            and not self._asking
            and not self.lost
        ):
            request = pending.popleft()
            try:
                if not self._begin(request):
                    pending.appendleft(request)
                    break
            except Exception as problem:  # noqa: BLE001 - the client gets it
                self._reply(failure(problem))

    def _begin(self, request: Request) -> bool:
        """Begin a request; return False if all before it have to be answered first."""
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
            self._reply(commands.wrong_number(name))
        elif name == "INCR":
            self._incr([b"INCR", *arguments])
        elif name in commands.ASKING:
            if self._replies:
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
        self._reply(commands.AT_ONCE[name](self._session, self._shared.about, arguments))
        self._parser.stranger = self._session.stranger
        if name == "MULTI":
            # Not by the short way, which would draw at once.
            self._transaction, self._same = CommandQueue(), b""
        elif name == "QUIT":
            self._pending.clear()
            self._ending = True

    def _transact(self, transaction: CommandQueue, request: Request) -> bool:
        """Queue a request of a transaction, or end that."""
        name = request[0].upper()
        if name in (b"QUIT", b"RESET"):
            self._transaction = None
            return self._begin(request)
        if name in (b"EXEC", b"DISCARD") and len(request) == 1:
            self._transaction = None
            self._shared.commands[name.decode()] += 1
            reply, requests = transaction.end(name)
            self._reply(reply)
            self._pending.extendleft(reversed(requests))
            return True
        try:
            self._session.caller()
        except IssuerError:
            transaction.refuse()
            raise
        self._reply(transaction.add(request))
        return True

    def _unknown(self, given: bytes) -> None:
        if given.upper() in OF_BROWSERS:
            told = "an HTTP request reached the Redis protocol port, perhaps from a web page: its connection was closed"
            self._shared.sparing.say(log.warning, "http", "", told)
            self._pending.clear()
            self._replies.clear()
            self._ending = True
            self.abort()
            return
        self._shared.commands[OTHER] += 1
        self._session.caller()
        self._reply(commands.unknown(given))

    # ------------------------------------------------------------------ numbers

    def _incr(self, request: Request) -> None:
        """Draw for this INCR, and for those of the same tag that follow it."""
        times, pending = 1, self._pending
        while pending and pending[0] == request:
            pending.popleft()
            times += 1
        try:
            tag = commands.tag_of(request[1])
        except IssuerError as problem:
            self._reply(failure(problem) * times)
            return
        self._draw(tag, times)

    def _draw(self, tag: str, times: int) -> None:
        """Draw that many numbers, as far as the client may have them."""
        shared = self._shared
        shared.commands["INCR"] += times
        self.asked = True
        refusals = () if shared.is_open else self._refusals(tag, times)
        granted = times - len(refusals)
        if granted:
            demand = Demand(self, granted)
            self._unanswered += granted
            self._replies.append(demand)
            if not shared.drawing.draw(tag, demand):
                self._wait_for(self._looked_up(tag, demand))
        for refusal in refusals:
            self._reply(refusal)

    def _refusals(self, tag: str, times: int) -> Sequence[bytes]:
        """Return the errors for those of the INCRs that the client may not have, the last ones."""
        try:
            granted, problem = self._session.caller().need_some("issue", tag, times)
        except IssuerError as refused:
            return [failure(refused)] * times
        return [] if problem is None else [failure(problem)] * (times - granted)

    def answered(self, demand: Demand) -> None:
        """Take note that the demand's reply is there."""
        self._unanswered -= demand.n

    # ------------------------------------------------------------------ commands that wait

    def _ask(self, name: str, arguments: list[bytes]) -> None:
        self._shared.commands[name] += 1
        self.asked = True
        self._wait_for(self._asked(name, arguments))

    def _wait_for(self, answering: Coroutine[Any, Any, None]) -> None:
        self._asking = True
        task = self._shared.loop.create_task(answering)
        self._shared.tasks.add(task)
        task.add_done_callback(self._shared.tasks.discard)

    async def _looked_up(self, tag: str, demand: Demand) -> None:
        """Draw for the demand once the tag is known to be there: of each client one name is looked up at a time."""
        try:
            await self._shared.look_ups.look_up(tag)
        except asyncio.CancelledError:
            demand.fail(failure(ending(tag)))
        except Exception as problem:  # noqa: BLE001 - the client gets it
            demand.fail(failure(problem))
        else:
            self._shared.drawing.draw(tag, demand, found=True)
        self._asking = False
        if not self.lost:
            self.flush()

    async def _asked(self, name: str, arguments: list[bytes]) -> None:
        try:
            reply = await commands.ASKING[name](self._session, self._shared.look_ups, arguments)
        except asyncio.CancelledError:
            reply = failure(ending())
        except Exception as problem:  # noqa: BLE001 - the client gets it
            reply = failure(problem)
        self._asking = False
        if not self.lost:
            self._reply(reply)
            self.flush()

    # ------------------------------------------------------------------ replies

    def _reply(self, packed: bytes) -> None:
        self._replies.append(packed)
        self._packed += len(packed)

    def flush(self) -> None:
        """Write the replies that are next, as far as they are there, and begin what has waited for them."""
        parting = self._shared.draining and self.asked
        if parting:
            self._hold_back(held=True)
        while self._write() and self._pending:
            self._advance()
        if self._reading and not self._ending and not self._parser.fault and not parting:
            return
        done = not self._replies and not self._pending and not self._asking and not self.lost
        if done and self._ending:
            if self._farewell is None:
                self._transport.close()
        elif done and self._parser.fault:
            self._dismiss(error(f"ERR Protocol error: {self._parser.fault}"))
        elif done and parting and self._parser.between and not self._unread():
            self._dismiss(b"")  # with what was held back: a client that has the reply has the end, too
            return
        elif not self._reading:
            self._hold()
        if parting:
            self._hold_back(held=False)

    def _hold_back(self, *, held: bool) -> None:
        """Have the system send what is written from now on together with what follows, or no longer."""
        if sys.platform == "linux" and not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, held)

    def _write(self) -> bool:
        """Write the replies that are next; return whether there were any."""
        replies = self._replies
        ready: list[bytes] = []
        while replies:
            first = replies[0]
            if isinstance(first, bytes):
                reply = first
                self._packed -= len(first)
            elif first.reply is None:
                break
            else:
                reply = first.reply
            ready.append(reply)
            replies.popleft()
        if not ready:
            return False
        if not self._transport.is_closing():
            self._transport.write(ready[0] if len(ready) == 1 else b"".join(ready))
        return True

    def _hold(self) -> None:
        """Read on from the client, or don't: it is ahead of its replies."""
        if self._ending or self.lost:
            return
        if self._parser.fault:
            self._stop_reading()
            return
        limit = UNANSWERED_MOST if self._reading else UNANSWERED_MOST // 2
        if self._pending or not self._writable or self._unanswered >= limit:
            self._stop_reading()
        elif not self._reading:
            self._reading = True
            self._transport.resume_reading()

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._transport.pause_reading()
