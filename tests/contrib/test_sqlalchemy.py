"""`issuer.contrib.sqlalchemy` in real databases: one draw for each statement, and what SQLAlchemy makes of an error."""

import asyncio
import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    Table,
    create_engine,
    func,
    insert,
    lambda_stmt,
    select,
    update,
)
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.exc import StatementError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, Session, mapped_column
from sqlalchemy.schema import CreateTable

import issuer
from issuer.contrib import sqlalchemy as contrib
from issuer.contrib.sqlalchemy import next_number
from issuer.plugins import Call, Plugin
from tests.forks import in_child
from tests.servers.proxy import FaultProxy
from tests.waiting import until

Rows = Sequence[dict[str, int]]

DATABASES = ["sqlite", "postgres", "mariadb"]
ASYNC = {"sqlite": "sqlite+aiosqlite", "postgres": "postgresql+psycopg"}


class Draws(Plugin):
    """Notes for each draw how many numbers it asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def before(self, call: Call) -> None:
        self.sizes.append(call.n)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True, default=next_number("orders"))
    amount: Mapped[int]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'app.db'}"
        return
    server = request.getfixturevalue(f"{request.param}_server").url
    driver = "postgresql+psycopg" if request.param == "postgres" else "mysql+pymysql"
    found = f"{driver}:{server.partition(':')[2]}"
    yield found
    engine = create_engine(found)
    Base.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'issuer.db'}"
    with issuer.connect(redis="none", store=url) as ids:
        ids.create("orders")
    return url


@pytest.fixture
def draws(store: str) -> Iterator[Draws]:
    """The draws of both default issuers."""
    draws = Draws()
    with (
        issuer.connect(redis="none", store=store, plugins=[draws]) as ids,
        issuer.set_default(ids),
        issuer.set_adefault(lambda: issuer.aconnect(redis="none", store=store, plugins=[draws])),
    ):
        yield draws


def rows(n: int, **more: int) -> list[dict[str, int]]:
    return [{"amount": each, **more} for each in range(n)]


def amounts(session: Session) -> dict[int, int]:
    """Return the number of each row."""
    return dict(session.execute(select(Order.amount, Order.id)).all())


#: Each way to insert many rows.
WAYS: dict[str, Callable[[Session, Rows], object]] = {
    "add_all": lambda session, rows: session.add_all([Order(**each) for each in rows]),
    "bulk_save_objects": lambda session, rows: session.bulk_save_objects([Order(**each) for each in rows]),
    "insert": lambda session, rows: session.execute(insert(Order), rows),
    "returning": lambda session, rows: session.scalars(insert(Order).returning(Order), rows).all(),
    "values": lambda session, rows: session.execute(insert(Order).values(list(rows))),
    "core": lambda session, rows: session.connection().execute(insert(Order.__table__), rows),  # type: ignore[arg-type]  # its type is FromClause
}


@pytest.mark.live
@pytest.mark.covers("U.23")
@pytest.mark.parametrize("url", DATABASES, indirect=True)
@pytest.mark.parametrize("way", WAYS)
def test_all_rows_of_a_bulk_insert_get_their_numbers_from_one_draw(way: str, url: str, draws: Draws) -> None:
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        WAYS[way](session, rows(5000 if way != "values" else 500))
        session.commit()
        found = amounts(session)
    engine.dispose()
    assert draws.sizes == [len(found)]
    assert [found[each] for each in sorted(found)] == [*range(1, len(found) + 1)]  # in the order of the rows


@pytest.mark.live
@pytest.mark.covers("U.23")
@pytest.mark.parametrize("url", [*ASYNC], indirect=True)
@pytest.mark.parametrize("way", ["add_all", "insert", "core"])
def test_an_async_session_draws_from_the_issuer_of_its_loop(way: str, url: str, draws: Draws) -> None:
    async def insert_rows() -> dict[int, int]:
        engine = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
        try:
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.create_all)
            async with AsyncSession(engine) as session:
                await session.run_sync(WAYS[way], rows(5000))
                await session.flush()
                session.add(order := Order(amount=5000))
                await session.commit()
                await session.refresh(order)
                assert order.id == 5001
                return await session.run_sync(amounts)
        finally:
            await issuer.adefault().close()
            await engine.dispose()

    found = asyncio.run(insert_rows())
    assert draws.sizes == [5000, 1]
    assert [found[each] for each in sorted(found)] == [*range(1, 5002)]
    assert issuer.take("orders", 1) == [5002]  # the loop's issuer has returned what it held


@pytest.mark.live
@pytest.mark.covers("U.23")
@pytest.mark.parametrize("kind", ["Issuer", "AsyncIssuer"])
def test_a_draw_of_an_async_session_does_not_block_the_loop(
    kind: str, redis_proxy: FaultProxy, redis_url: str, tmp_path: Path, store: str
) -> None:
    through = redis_url.replace(redis_url.rpartition(":")[2].partition("/")[0], str(redis_proxy.port))
    metadata = MetaData()
    given: dict[str, Any] = {"redis": through, "store": store, "timeout": 60, "redis_timeout": 60}
    made: list[Any] = []

    def ids() -> Any:
        made[:] = made or [issuer.connect(**given) if kind == "Issuer" else issuer.aconnect(**given)]
        return made[0]

    table = Table("t", metadata, Column("id", BigInteger, primary_key=True, default=next_number("orders", ids=ids)))

    async def insert_while_redis_does_not_answer() -> int:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'app.db'}")
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        redis_proxy.hold()
        async with engine.begin() as connection:
            task = asyncio.create_task(connection.execute(insert(table), [{}, {}, {}]))
            await asyncio.to_thread(until, lambda: redis_proxy.held, 60)  # this loop runs while the draw waits
            assert not task.done()
            redis_proxy.pass_through()
            redis_proxy.release()
            await task
            count = await connection.scalar(select(func.count()).select_from(table))
        closed = made[0].close()
        if closed is not None:
            await closed
        await engine.dispose()
        return int(count or 0)

    assert asyncio.run(insert_while_redis_does_not_answer()) == 3


@pytest.mark.covers("U.23")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
class TestOneSession:
    @pytest.fixture
    def session(self, url: str) -> Iterator[Session]:
        engine = create_engine(url)
        Base.metadata.create_all(engine)
        with Session(engine) as session:
            yield session
        engine.dispose()

    def test_a_row_that_has_a_number_draws_none(self, session: Session, draws: Draws) -> None:
        session.execute(insert(Order), rows(1, id=7_000_000))
        session.add_all([Order(amount=1, id=8_000_000), Order(amount=2, id=8_000_001)])
        session.flush()
        assert draws.sizes == []
        session.add_all([Order(amount=3, id=8_000_002), Order(amount=4), Order(amount=5)])
        session.flush()
        assert draws.sizes == [2]

    def test_a_rollback_leaves_a_gap(self, session: Session, draws: Draws) -> None:
        session.add_all([Order(amount=1), Order(amount=2)])
        session.flush()
        session.rollback()
        session.add(order := Order(amount=3))
        session.commit()
        assert order.id == 3
        assert draws.sizes == [2, 1]

    def test_an_error_is_the_cause_of_sqlalchemys_and_after_a_rollback_the_session_goes_on(
        self, session: Session, draws: Draws
    ) -> None:
        issuer.default().configure("orders", limit=1)
        session.add_all([Order(amount=1), Order(amount=2)])
        with pytest.raises(StatementError) as error:
            session.flush()
        assert isinstance(error.value.orig, issuer.LimitReached)
        assert error.value.orig.tag == "orders"
        session.rollback()
        issuer.default().configure("orders", limit=1000)
        session.add(order := Order(amount=3))
        session.commit()
        assert order.id in (1, 2)
        assert draws.sizes == [2, 1]

    def test_insert_from_select_is_refused_as_all_rows_would_get_one_number(
        self, session: Session, draws: Draws
    ) -> None:
        session.execute(insert(Order), rows(3, id=1)[:1])
        source = select(Order.amount)
        with pytest.raises(StatementError, match="include_defaults=False") as error:
            session.execute(insert(Order).from_select(["amount"], source))
        assert isinstance(error.value.orig, issuer.InvalidArgument)
        assert draws.sizes == []
        numbered = select(Order.id + 1000, Order.amount)
        session.execute(insert(Order).from_select(["id", "amount"], numbered))
        assert session.scalars(select(Order.id)).all() == [1, 1001]

    def test_insert_from_select_is_refused_also_in_a_lambda_and_in_an_orm_select(
        self, session: Session, draws: Draws
    ) -> None:
        copied = insert(Order).from_select(["amount"], select(Order.amount))
        returned = select(Order).from_statement(copied.returning(Order))
        for statement in (lambda_stmt(lambda: copied), returned):
            with pytest.raises(StatementError, match="include_defaults=False"):
                session.execute(statement)
        assert draws.sizes == []

    def test_an_update_is_refused_as_all_rows_would_get_one_number(self, url: str, draws: Draws) -> None:
        metadata, default = MetaData(), next_number("orders")
        table = Table("t", metadata, Column("a", BigInteger, default=default, onupdate=default), Column("b", Integer))
        engine = create_engine(url)
        metadata.create_all(engine)
        with engine.begin() as connection:
            connection.execute(insert(table), [{"b": 1}, {"b": 2}])
            with pytest.raises(StatementError, match="calls onupdate only once") as error:
                connection.execute(update(table).values(b=3))
            assert isinstance(error.value.orig, issuer.InvalidArgument)
            connection.execute(update(table).values(a=table.c.a + 10))
            assert connection.scalars(select(table.c.a)).all() == [11, 12]
        engine.dispose()
        assert draws.sizes == [2]

    def test_more_rows_than_a_draw_may_have_take_several(
        self, session: Session, draws: Draws, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(contrib, "TAKE_MOST", 10)
        session.execute(insert(Order), rows(25))
        assert draws.sizes == [10, 10, 5]
        assert sorted(amounts(session).values()) == [*range(1, 26)]

    def test_the_default_is_executed_by_itself(self, session: Session, draws: Draws) -> None:
        column = Order.__table__.c.id
        assert [session.connection().scalar(column.default) for _ in range(2)] == [1, 2]
        assert draws.sizes == [1, 1]

    def test_nothing_is_kept_of_a_statement_that_is_over(self, session: Session, draws: Draws) -> None:
        for _ in range(20):
            session.execute(insert(Order), rows(3))
        gc.collect()
        # `isinstance` would read `__class__`. Django, if it is imported, has lazy settings that raise an error then.
        contexts = [each for each in gc.get_objects() if issubclass(type(each), DefaultExecutionContext)]
        assert len(contexts) <= 2
        assert draws.sizes == [3] * 20


def test_a_dataclass_has_it_as_insert_default(draws: Draws) -> None:
    class DataBase(MappedAsDataclass, DeclarativeBase):
        pass

    class Invoice(DataBase):
        __tablename__ = "invoices"
        id: Mapped[int] = mapped_column(BigInteger, primary_key=True, init=False, insert_default=next_number("orders"))
        amount: Mapped[int]

    engine = create_engine("sqlite://")
    DataBase.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all(invoices := [Invoice(amount=1), Invoice(amount=2)])
        session.flush()
        assert [each.id for each in invoices] == [1, 2]
    engine.dispose()
    assert draws.sizes == [2]


def test_two_columns_may_have_one_default(tmp_path: Path, draws: Draws) -> None:
    metadata, default = MetaData(), next_number("orders")
    table = Table("t", metadata, *(Column(name, BigInteger, default=default) for name in "ab"), Column("c", Integer))
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(insert(table), [{"c": 1}, {"c": 2}, {"c": 3}])
        pairs = connection.execute(select(table.c.a, table.c.b)).all()
    engine.dispose()
    assert sorted(number for pair in pairs for number in pair) == [1, 2, 3, 4, 5, 6]
    assert draws.sizes == [6]


@pytest.mark.live
def test_a_common_table_expression_that_inserts_from_select_is_refused_too(postgres_server: Any, draws: Draws) -> None:
    metadata = MetaData()
    other = Table("other", metadata, Column("other", Integer))
    engine = create_engine(f"postgresql+psycopg:{postgres_server.url.partition(':')[2]}")
    with engine.connect() as connection:
        Base.metadata.create_all(connection)
        metadata.create_all(connection)
        connection.execute(insert(Order), rows(2))
        copied = insert(Order).from_select(["amount"], select(Order.amount)).returning(Order.id).cte()
        amount = select(func.count(copied.c.id)).scalar_subquery()
        for statement in (
            select(copied),
            insert(other).values(other=1).add_cte(copied),
            insert(other).values(other=amount),
        ):
            with pytest.raises(StatementError, match="include_defaults=False"):
                connection.execute(statement)
        added = insert(Order).values(rows(3)).returning(Order.id).cte()
        assert connection.scalars(select(added)).all() == [3, 4, 5]
        connection.rollback()
    engine.dispose()
    assert draws.sizes == [2, 3]


@pytest.mark.covers("U.23")
def test_eight_threads_insert_rows_without_a_repeat(tmp_path: Path, draws: Draws) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 60})
    Base.metadata.create_all(engine)
    together = threading.Barrier(8)

    def insert_rows(_: int) -> None:
        together.wait(60)
        for _ in range(5):
            with Session(engine) as session:
                session.execute(insert(Order), rows(20))
                session.commit()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(insert_rows, range(8)))
    with Session(engine) as session:
        assert sorted(session.scalars(select(Order.id))) == [*range(1, 801)]
    engine.dispose()
    assert Counter(draws.sizes) == {20: 40}


def test_the_table_has_no_default_of_the_database_so_there_is_nothing_to_migrate() -> None:
    for dialect in ("sqlite", "postgresql+psycopg", "mysql+pymysql"):
        engine = create_engine(f"{dialect}://")
        ddl = str(CreateTable(Order.__table__).compile(engine))  # type: ignore[arg-type]  # its type is FromClause
        assert "id BIGINT NOT NULL" in ddl
        assert not {"DEFAULT", "SERIAL", "IDENTITY", "AUTO_INCREMENT"} & {*ddl.upper().split()}


def test_an_issuer_may_be_given_and_one_of_a_loop_cannot_serve_a_blocking_engine(tmp_path: Path, store: str) -> None:
    def table(ids: Any) -> Table:
        return Table(
            "t", MetaData(), Column("id", BigInteger, primary_key=True, default=next_number("orders", ids=ids))
        )

    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    with closing(issuer.connect(redis="none", store=store)) as ids, engine.begin() as connection:
        table(None).create(connection)
        for given in (ids, lambda: ids):
            connection.execute(insert(table(given)), [{}, {}])
        assert connection.scalars(select(table(None).c.id)).all() == [1, 2, 3, 4]
        with pytest.raises(StatementError, match="pass an Issuer") as error:
            connection.execute(insert(table(partial(issuer.aconnect, redis="none", store=store))))
    assert isinstance(error.value.orig, issuer.ConfigurationError)
    engine.dispose()


@pytest.mark.covers("U.23")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_inserts_other_numbers_than_its_parent(tmp_path: Path, draws: Draws) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    engine = create_engine(url, connect_args={"timeout": 60})
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.execute(insert(Order), rows(3))
        session.commit()
    engine.dispose()

    def inserted() -> None:
        with Session(create_engine(url, connect_args={"timeout": 60})) as session:
            session.execute(insert(Order), rows(3))
            session.commit()

    assert [in_child(inserted)() for _ in range(2)] == [None, None]
    with Session(engine) as session:
        session.execute(insert(Order), rows(3))
        assert len(set(session.scalars(select(Order.id)))) == 12
    engine.dispose()
    assert draws.sizes == [3, 3]
