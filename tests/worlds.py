"""The async twins as the sync tests call them: an event loop in a thread of its own, and a twin for every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from sqlalchemy import URL, Engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from turnfold import SqlRepository, aio, prepare_sqlite
from turnfold.aio import AsyncSqlRepository

T = TypeVar("T")

DRIVERS = {"aiosqlite": "sqlite+aiosqlite", "psycopg": "postgresql+psycopg", "asyncpg": "postgresql+asyncpg"}


@contextmanager
def world_of(world: str, monkeypatch: pytest.MonkeyPatch, namespace: dict[str, Any], *names: str) -> Iterator[None]:
    """Puts the async twins in the place of functions of turnfold where `world` is "async"."""
    if world == "sync":
        yield
        return
    portal = Portal()
    for name in names:
        monkeypatch.setitem(namespace, name, portal.blocking(getattr(aio, name)))
    yield
    portal.close()


class Portal:
    """Runs coroutines on a loop of its own and waits for them, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._engines: dict[Engine, AsyncEngine] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def twin(self, store: SqlRepository) -> AsyncSqlRepository:
        """An async store on the database of a sync one."""
        engine = self._engines.get(store._engine)
        if engine is None:
            driver = "aiosqlite" if store._engine.dialect.name == "sqlite" else "psycopg"
            engine = self._engines[store._engine] = async_engine(store._engine.url, driver)
        return AsyncSqlRepository(engine, token_counter=store.token_counter, embedder=store._embedder)

    def blocking(self, function: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., T]:
        """An async function of turnfold, called with a sync store."""

        def call(*args: Any, **kwargs: Any) -> T:
            twins = [self.twin(value) if isinstance(value, SqlRepository) else value for value in args]
            return self.run(function(*twins, **kwargs))

        return call

    def close(self) -> None:
        for engine in self._engines.values():
            self.run(engine.dispose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """An async repository with sync methods, so that the one contract judges it."""

    def __init__(self, repository: AsyncSqlRepository, portal: Portal) -> None:
        self._repository = repository
        self._portal = portal

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._repository, name)
        if not asyncio.iscoroutinefunction(value):
            return value
        return lambda *args, **kwargs: self._portal.run(value(*args, **kwargs))


def async_engine(url: str | URL, driver: str, **options: Any) -> AsyncEngine:
    """An async engine for the database of `url`, of which only the driver changes."""
    from sqlalchemy import make_url

    parsed = make_url(url).set(drivername=DRIVERS[driver])
    if driver == "asyncpg" and "host" in parsed.query:
        parsed = parsed.set(host=None)
    engine = create_async_engine(parsed, **options)
    if engine.dialect.name == "sqlite":
        prepare_sqlite(engine.sync_engine)
    return engine
