"""The async store on its three drivers: the same contract, the service's own transaction, cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession

from tests.worlds import Blocking, Portal, async_engine
from turnfold import InvalidArgument, SchemaMismatch, SqlRepository, Turn
from turnfold.aio import AsyncSqlRepository, migrate
from turnfold.testing import RepositoryContract, some_turns


@pytest.fixture(scope="module")
def portal() -> Iterator[Portal]:
    portal = Portal()
    yield portal
    portal.close()


@pytest.fixture(params=["aiosqlite", "psycopg", "asyncpg"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def dialect(driver: str) -> str:
    return "sqlite" if driver == "aiosqlite" else "postgres"


@pytest.fixture
def async_one(url: str, driver: str, portal: Portal) -> Iterator[AsyncEngine]:
    engine = async_engine(url, driver)
    yield engine
    checked_out = engine.pool.checkedout()  # type: ignore[attr-defined]
    portal.run(engine.dispose())
    assert checked_out == 0


class TestAsyncSqlRepository(RepositoryContract):
    @pytest.fixture
    def repository(self, async_one: AsyncEngine, portal: Portal) -> Blocking:
        return Blocking(AsyncSqlRepository(async_one), portal)


class TestInASchema:
    def test_tables_and_turns_go_into_the_schema(self, empty_url: str, driver: str, portal: Portal) -> None:
        engine = async_engine(empty_url, driver)
        if driver == "aiosqlite":
            with pytest.raises(InvalidArgument, match="SQLite has no schemas"):
                portal.run(migrate(engine, "chat"))
        else:
            portal.run(migrate(engine, "chat"))
            store = Blocking(AsyncSqlRepository(engine, "chat"), portal)
            assert store.append_turns("s", some_turns(2)) == store.get_session_turns("s")
            with pytest.raises(SchemaMismatch):
                Blocking(AsyncSqlRepository(engine), portal).get_session("s")
        portal.run(engine.dispose())


class TestMigrate:
    def test_tasks_that_start_at_once_migrate_once(self, empty_url: str, driver: str, portal: Portal) -> None:
        engine = async_engine(empty_url, driver)

        async def replica(number: int) -> None:
            await migrate(engine)
            await AsyncSqlRepository(engine).append_turns("new", [Turn("user", str(number))])

        async def all_at_once() -> None:
            await asyncio.gather(*(replica(number) for number in range(8)))

        portal.run(all_at_once())
        store = Blocking(AsyncSqlRepository(engine), portal)
        assert sorted(turn.content for turn in store.get_session_turns("new")) == [str(n) for n in range(8)]
        portal.run(engine.dispose())


class TestBound:
    @pytest.mark.parametrize("commits", [True, False])
    def test_a_turn_commits_or_rolls_back_with_the_rows_of_the_service(
        self, async_one: AsyncEngine, portal: Portal, commits: bool
    ) -> None:
        store = AsyncSqlRepository(async_one)

        async def request() -> tuple[int, int]:
            async with async_one.begin() as connection:
                await connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
            async with AsyncSession(async_one) as session:
                await store.bound(session, lambda bound: bound.append_turns("s", some_turns(1)))
                await session.execute(text("INSERT INTO orders VALUES (1)"))
                await (session.commit() if commits else session.rollback())
            async with async_one.begin() as connection:
                orders = (await connection.execute(text("SELECT count(*) FROM orders"))).scalar_one()
                await connection.execute(text("DROP TABLE orders"))
            return orders, len(await store.get_session_turns("s"))

        assert portal.run(request()) == ((1, 1) if commits else (0, 0))


class TestBothWorldsOnOneDatabase:
    def test_what_one_writes_the_other_reads_equal(
        self, url: str, store: SqlRepository, async_one: AsyncEngine, portal: Portal
    ) -> None:
        other = Blocking(AsyncSqlRepository(async_one), portal)
        turns = store.append_turns("s", some_turns(3))
        assert other.get_session_turns("s") == turns
        more = other.append_turns("s", some_turns(2, start=3))
        assert store.get_session_turns("s") == turns + more
