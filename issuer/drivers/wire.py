"""The slow path of a call to Redis: find the server that has the key, get a connection, and interpret errors.

Most draws use a faster path, see connections.py. In threads, the coroutines never wait for an event loop: the methods
of links and wakers block instead. See `issuer.threads.finished`.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, TypeVar

import redis

from issuer.clock import Deadline, monotonic
from issuer.core.steps import Elsewhere, Masters, Pipeline, Send, Server, Sighting, Silence, Visit
from issuer.drivers.inherited import AnyLink
from issuer.drivers.redis_errors import Crowded, connection_error, meaning, settling
from issuer.drivers.running import SHORTEST
from issuer.drivers.servers import LOOK_AGAIN, AnyNode, Permit, RedisStep, Servers
from issuer.drivers.topology import EVIDENCE, Address, Exchange, LeftAlone, Outdated, Unreached, judge
from issuer.errors import FenceError, IssuerError, RedisUnavailable
from issuer.forks import GENERATION, refuse_inherited
from issuer.gateway import server_commands
from issuer.gateway.commands import RedisCall, pack

#: How many redirects of a Cluster a call follows. While slots move, two are usual.
REDIRECTS = 5

#: Maximum number of calls that are sent at once. Even with the longest names, they have less than 20 KB in total. They
#: fit into the buffer of a new socket, so sending never waits for the server.
PIPELINED = 40


N_co = TypeVar("N_co", bound=AnyNode[Any], covariant=True)
L = TypeVar("L", bound=AnyLink)


class Wire(Servers[N_co]):
    """Redis servers, with a method that executes the steps of `core`."""

    async def do(self, step: RedisStep, deadline: Deadline, tag: str | None = None) -> Any:
        """Execute the step in Redis, and return its result.

        Raises RedisUnavailable, FenceError, CorruptState, ConfigurationError.
        """
        trips = RoundTrips(self, step, deadline)
        try:
            match step:
                case Send():
                    return await trips.routed(step.call, probe=step.probe)
                case Pipeline():
                    return await trips.pipelined(step.calls, probe=step.probe)
                case Masters():
                    return await trips.masters()
                case Silence():
                    return await trips.silence()
                case Visit():
                    host, port = step.server
                    return await trips.exchange(Exchange(Address(host or None, port), step.call))
                case Elsewhere():
                    return await trips.elsewhere(step.calls)
        except (redis.RedisError, IssuerError, Crowded) as error:
            key = step.call.key if isinstance(step, Send | Visit) else ""
            meant = meaning(error, self.name, key, tag, trips.sent)
            if isinstance(meant, RedisUnavailable):
                meant.tag, meant.retry_after = tag, max(self.route.retry_after(key), settling(error))
            if meant is error:
                raise
            raise meant from error

    async def connection(self, node: AnyNode[L], deadline: Deadline, *, connects: bool) -> tuple[L, bool]:
        """Return a connection, and whether it was used before. If all connections are in use, wait for one.

        A waiting call holds no lock. It gives up before its deadline, so that a call that gets a connection has time
        left to detect that the server is down. `connects`: whether the connection may be a new one. If it may not,
        raises Outdated. Raises Crowded.
        """
        found = self.find(node)
        if found is None:
            left = deadline.left()
            until = Deadline(max(left / 2, left - EVIDENCE))
            turn = node.pool.queue(node, until)
            try:
                while not turn.given and (left := until.left()):
                    node.put_back(self.find(node))  # something may have become free before this call was in the queue
                    await turn.waker.wait(min(left, LOOK_AGAIN))
            except BaseException:
                node.pool.leave(turn)
                raise
            if not turn.given:
                node.pool.leave(turn)
                problem = f"all {node.pool.most} connections to Redis of this process are in use"
                raise Crowded(f"{problem}: raise the setting redis_connections")
            found = turn.given.pop()
        if not isinstance(found, Permit):
            return found, True
        if not connects:
            raise Outdated
        recipe = self.target.recipe(node.address, self.no_retry, self.shown_class)
        connection = recipe.kind(**recipe.settings)
        if (provider := recipe.provider) is not None:
            connection.credential_provider = await self.aside(provider.login, deadline.left())
        link: L = self.link_class(connection, found)
        return link, False

    def refused(self, link: AnyLink, error: Exception) -> bool:
        """Whether the server refuses the login of a new connection, and the next connection gets its login anew."""
        provider = self.target.data.provider
        if provider is None or not isinstance(error, redis.exceptions.AuthenticationError):
            return False
        login = link.connection.credential_provider
        if login is not None:  # a Sentinel's login is that of the URL
            provider.refused(login)
        return login is not None


class RoundTrips:
    """The calls to Redis for one step. `sent`: the call that was sent last."""

    __slots__ = ("_deadline", "_end", "_generation", "_route", "_servers", "sent")

    def __init__(self, servers: Wire[AnyNode[Any]], step: RedisStep, deadline: Deadline) -> None:
        self._servers = servers
        self._route = servers.route
        self._deadline = deadline
        self._generation = GENERATION.now
        left = deadline.left() / (2 if isinstance(step, Elsewhere) else 1)
        #: Deadline of all round trips of this step.
        self._end = Deadline(min(servers.timeout, max(SHORTEST, left)))
        self.sent: RedisCall[Any] | None = None

    # ------------------------------------------------------------------ which server

    async def routed(self, call: RedisCall[Any], *, probe: bool) -> Any:
        """Send the call to the server that has the key, and return the decoded reply.

        If the reply is MOVED or ASK, the call is sent to the server that the reply names. `probe`: whether the
        caller may wait for a call that tests a server which was down.
        """
        route, anew = self._route, False
        for _ in range(REDIRECTS):
            address, connects = await self._found(call.key, probe=probe, anew=anew)
            try:
                reply = await self._asked(Exchange(address, call, connects=connects), trusts=True)
            except Outdated:
                anew = True
                continue
            except redis.exceptions.AskError as redirect:  # MovedError is a subclass
                host = redirect.host or address.host
                if isinstance(redirect, redis.exceptions.MovedError):
                    route.moved(call.key, Address(host, redirect.port))
                    continue
                if host == server_commands.NAMELESS:
                    question = server_commands.importer(redirect.slot_id, call.key)
                    host = await self.exchange(Exchange(address, question))
                if not host:
                    continue
                return await self.exchange(Exchange(Address(host, redirect.port), call, asking=True))
            except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ClusterDownError):
                route.lost(address)
                raise
            match getattr(reply, "status", None):
                case "notmaster" if route.moves or address in route.ruled:
                    # This is a failover. Either another server is the master now, maybe with the same name, or this
                    # server will become the master again.
                    route.lost(address)
                    raise RedisUnavailable(
                        f"{address.name} is no longer a master; waiting until it or another server is the master"
                    )
                case str(status) if status != "notmaster":
                    route.ruled.add(address)
            return reply
        raise RedisUnavailable(f"the nodes of the Cluster redirect {call.key} to each other")

    async def pipelined(self, calls: Sequence[RedisCall[Any]], *, probe: bool) -> list[Any]:
        """Send the calls, all calls of one server at once. Return the decoded replies, with errors as IssuerErrors.

        If a server rejects a call, the call has not run. So this call is sent again alone, and then MOVED and ASK are
        followed too. If no server answers, the error of the first call is raised.
        """
        answers: dict[int, Any] = {}
        failed: dict[int, redis.RedisError | IssuerError] = {}
        places = defaultdict[tuple[Address, bool], list[int]](list)
        for place, call in enumerate(calls):
            try:
                places[await self._found(call.key, probe=probe, anew=False)].append(place)
            except (redis.RedisError, IssuerError) as error:
                failed[place] = error
        for (address, connects), there in places.items():
            for first in range(0, len(there), PIPELINED):
                part = there[first : first + PIPELINED]
                together = [calls[place] for place in part]
                try:
                    answers.update(zip(part, await self._together(address, together, connects=connects), strict=True))
                except (redis.RedisError, IssuerError) as error:
                    failed.update(dict.fromkeys(there[first:], error))
                    break
        if failed and not answers:
            raise failed[min(failed)]
        name = self._servers.name
        answers.update((place, meaning(error, name, calls[place].key, None)) for place, error in failed.items())
        return [answers[place] for place in range(len(calls))]

    async def _together(self, address: Address, calls: Sequence[RedisCall[Any]], *, connects: bool) -> list[Any]:
        """Send the calls to one server at once. Return the reply of each call, or an IssuerError in its place."""
        try:
            answers: list[Any] = await self._asked(
                Exchange(address, _joined(calls), connects=connects, replies=len(calls)), trusts=True
            )
        except Outdated:
            address, _ = await self._found(calls[0].key, probe=True, anew=True)
            return await self._together(address, calls, connects=True)
        except (redis.ConnectionError, redis.TimeoutError):
            self._route.lost(address)
            raise
        for place, (call, answer) in enumerate(zip(calls, answers, strict=True)):
            if isinstance(answer, Exception) or getattr(answer, "status", "") == "notmaster":
                try:
                    answers[place] = await self.routed(call, probe=True)
                except (redis.ConnectionError, redis.TimeoutError):
                    raise
                except (redis.RedisError, IssuerError) as error:
                    answers[place] = meaning(error, self._servers.name, call.key, None, call)
        return answers

    async def _found(self, key: str, *, probe: bool, anew: bool) -> tuple[Address, bool]:
        """Return the server that has the key, and whether a new connection to it may be made.

        `anew`: search again, even if a server is known. Raises LeftAlone if the server is down, and RedisUnavailable.
        """
        route = self._route
        known = route.last_owner(key)
        if known is not None and not anew:
            breaker = route.breakers[known]
            trial = breaker.failures and breaker.admit(probe=probe)
            if not (trial and route.moves):
                return known, not route.asks_before_connecting
            route.lost(known)  # this server did not answer, so another server may have replaced it
        try:
            found = await self._searched(key, probe=probe)
        except (LeftAlone, RedisUnavailable):
            if known is None or not anew:
                raise
            # The Sentinels do not answer, so no failover was reported. Use the known master.
            found = known
        if found != known:
            route.breakers[found].admit(probe=probe)
        return found, True

    async def _searched(self, key: str, *, probe: bool) -> Address:
        """Search for the server that has the key. Raises LeftAlone if the last search failed a moment ago."""
        breaker, began = self._route.breakers[None], monotonic()
        breaker.admit(probe=probe)
        try:
            found = await self._search(key)
        except (redis.RedisError, IssuerError) as error:
            judge(breaker, error, began)
            raise
        breaker.answered()
        return found

    async def _search(self, key: str) -> Address:
        """Ask one guide after another which server has the key. Raises RedisUnavailable, ConfigurationError."""
        route = self._route
        guides = route.guides
        trouble: Exception | None = None
        unknown = False
        for left in range(len(guides), 0, -1):
            guide = guides[0]
            try:
                answer = await self.exchange(Exchange(guide, route.question(key), share=left + route.spared))
            except redis.RedisError as error:
                trouble = error
            else:
                found = route.learn(guide, answer, key)
                if found is not None:
                    return found
                unknown = True
            guides.rotate(-1)
        raise route.unfound(key, trouble, unknown=unknown) from trouble

    async def masters(self) -> list[Server]:
        """Search for the servers that issue numbers, and return them."""
        route = self._route
        found = (None if route.moves else route.last_owner("")) or await self._search("")
        return [address.server for address in route.masters(found)]

    async def silence(self) -> int | None:
        """Return the longest answer of the Sentinels; see `Silence`. 0 if none answers, None if there are none."""
        answers = [await self._attempted(exchange) for exchange in self._route.silence()]
        return max((each for each in answers if isinstance(each, int)), default=0) if answers else None

    # ------------------------------------------------------------------ other servers

    async def elsewhere(self, calls: Sequence[RedisCall[Any]]) -> list[list[Sighting[Any]]]:
        """Send each call to all nodes that may have its key, except the master: replicas and former masters.

        Return one list for each call, with one reply or error (`Sighting`) for each node.
        """
        route, owners = self._route, defaultdict[Address, list[int]](list)
        for place, call in enumerate(calls):
            # Slots of a Cluster may have moved. So search for the owner of the first key: this finds all owners.
            known = None if route.sharded and place == 0 else route.last_owner(call.key)
            owners[known or await self._search(call.key)].append(place)
        seen: list[list[Sighting[Any]]] = [[] for _ in calls]
        for owner, places in owners.items():
            found = await self._others(owner, calls[places[0]].key)
            left = [*found.values()].count(None)
            for node, error in found.items():
                answers: list[Any] = [error] * len(places)
                if error is None:
                    answers = await self._read_at(node, [calls[place] for place in places], share=left)
                    left -= 1
                for place, answer in zip(places, answers, strict=True):
                    failed = isinstance(answer, Exception)
                    sighting = Sighting(node.name, error=str(answer)) if failed else Sighting(node.name, answer)
                    seen[place].append(sighting)
        return seen

    async def _read_at(self, node: Address, calls: Sequence[RedisCall[Any]], *, share: int) -> list[Any]:
        """Send the calls to a node that may fail. `share`: the remaining time is divided among this many nodes."""
        answers: list[Any] = []
        for first in range(0, len(calls), PIPELINED):
            part = calls[first : first + PIPELINED]
            exchange = Exchange(node, _joined(part), readonly=self._route.sharded, share=share, replies=len(part))
            answer = await self._attempted(exchange)
            answers += [answer] * len(part) if isinstance(answer, Exception) else answer
        return answers

    async def _others(self, owner: Address, key: str) -> dict[Address, Exception | None]:
        """Return the other nodes that may have the owner's keys: its replicas, and former masters.

        In the result, a node that was asked for further nodes and failed has its error. All other nodes have None.
        Raises RedisUnavailable, ConfigurationError.
        """
        route = self._route
        found: dict[Address, Exception | None] = {}
        for question in route.kin_questions(owner, key):
            answer = await self._attempted(question)
            if isinstance(answer, Exception):
                found[question.address] = answer
            else:
                nodes = [Address(*server) for server in route.kin(answer)]
                found.update((node, None) for node in nodes if node != owner)
        return found

    async def _attempted(self, exchange: Exchange) -> Any:
        """Return the reply or the error of a node that may fail. A node that was down a moment ago is not called."""
        try:
            self._route.breakers[exchange.address].admit(probe=False)
            return await self._asked(exchange, trusts=False)
        except redis.RedisError as error:
            return error

    # ------------------------------------------------------------------ one exchange

    async def _asked(self, exchange: Exchange, *, trusts: bool) -> Any:
        """Return the reply, and record in the server's circuit breaker whether it answered.

        `trusts`: whether this server issues numbers. Then it must be a supported server. Raises FenceError.
        """
        route, address = self._route, exchange.address
        breaker, began = route.breakers[address], monotonic()
        try:
            if trusts and address not in route.checked:
                info = await self.exchange(Exchange(address, server_commands.SERVER_INFO, connects=exchange.connects))
                server_commands.check_server(info)
                route.checked.add(address)
            reply = await self.exchange(exchange)
        except (redis.RedisError, FenceError) as error:
            judge(breaker, error, began)
            raise
        if breaker.failures:
            breaker.answered()
        return reply

    async def exchange(self, exchange: Exchange, *, again: bool = False) -> Any:  # noqa: C901, PLR0912 - a case for each end
        """Send one call and return its decoded reply. Raises errors of redis-py, and Crowded.

        If a signal handler, a cancellation or the end of the loop interrupts the call, the connection is closed at
        once, because the reply may still arrive. `again`: whether a login for this call was refused before.
        """
        call = self.sent = exchange.call
        node = self._servers.nodes.get(exchange.address) or self._servers.make_node(exchange.address)
        end, deadline = self._end, self._deadline
        began = monotonic()
        link, reused = await self._servers.connection(node, deadline, connects=exchange.connects)
        now = monotonic()
        # Waiting for a connection does not count: extend the deadline of the step's round trips by this time.
        end.at = min(end.at + now - began, max(deadline.at, now + SHORTEST))
        if exchange.share > 1:
            end = Deadline(end.left() / exchange.share)
        while True:
            refuse_inherited(self._generation)  # the parent sends the same call
            # A call that must not be repeated needs a connection that the server has not closed.
            if reused and not call.repeatable and await link.stale():
                link.drop()
                link, reused = await self._servers.connection(node, end, connects=exchange.connects)
                continue
            try:
                if not reused:
                    await link.connect(end)
                if self._servers.abandoned():
                    break
                answer = call.decode(await self._replied(exchange, link, end))
            except Exception as raised:  # noqa: BLE001 - `connection_error` raises all other errors
                link.drop()
                error = connection_error(raised)
                closed = isinstance(error, redis.ConnectionError)
                if closed and not reused:
                    if self._servers.refused(link, error):
                        if not again:
                            return await self.exchange(exchange, again=True)
                        # The password may be valid in a moment. AuthenticationError would mean: correct the settings.
                        raise redis.ConnectionError(f"refuses the password: {error}") from error
                    raise _unreached(error) from error.__cause__
                if not closed or not call.repeatable:
                    raise error  # noqa: B904 - it has its own cause
                # The server closed this connection while it was idle. So the server has probably closed the other idle
                # connections too.
                node.drop_idle()
                link, reused = await self._servers.connection(node, end, connects=exchange.connects)
                continue
            except BaseException:
                link.drop()
                raise
            if getattr(answer, "status", "") == "notmaster":
                # The address may belong to another server now. Only a new connection reaches that server.
                link.drop()
                node.drop_idle()
            else:
                node.idle.append(link)
                if node.closed or node.waiting:
                    node.settle()
            return answer
        node.put_back(link)
        raise CancelledError

    async def _replied(self, exchange: Exchange, link: AnyLink, end: Deadline) -> Any:
        call = exchange.call
        if exchange.readonly:
            await link.reply(pack("READONLY"), end)
            replies = await link.replies(call.packed, exchange.replies, end)
            await link.reply(pack("READWRITE"), end)
            return replies
        if exchange.replies:
            return await link.replies(call.packed, exchange.replies, end)
        if exchange.asking:
            await link.reply(pack("ASKING"), end)
        try:
            return await link.reply(call.packed, end)
        except redis.exceptions.NoScriptError:
            # A server that replies NOSCRIPT has not run the call, so the call may be sent again.
            await link.reply(pack("SCRIPT", "LOAD", call.text), end)
            if exchange.asking:
                await link.reply(pack("ASKING"), end)
            return await link.reply(call.packed, end)


def _joined(calls: Sequence[RedisCall[Any]]) -> RedisCall[list[Any]]:
    """Pack the calls into one call. Its result is a list with the decoded reply or the error of each of the calls."""

    def decoded(replies: list[Any]) -> list[Any]:
        both = zip(calls, replies, strict=True)
        return [reply if isinstance(reply, Exception) else call.decode(reply) for call, reply in both]

    packed, repeatable = b"".join(call.packed for call in calls), all(call.repeatable for call in calls)
    return RedisCall(packed, "", decoded, repeatable, calls[0].key)


def _unreached(error: Exception) -> Exception:
    """Return Unreached if a new connection failed. If the error is a reply of the server, return the error itself."""
    return Unreached(str(error)) if type(error) is redis.ConnectionError else error
