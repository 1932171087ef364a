"""One fixture gives every test that touches a database an empty, migrated one: once on SQLite, once on PostgreSQL.

Where PostgreSQL comes from stands in `databases.py`; where none works the run fails, it never skips.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine, text

from tests.databases import Postgres, postgres_server
from turnfold import SqlRepository, create_engine, migrate
from turnfold.sql.tables import metadata

settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=100, suppress_health_check=list(HealthCheck)
)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Postgres) -> Iterator[str]:
    """A migrated database that the tests share, one after the other: making one takes 0.3 seconds."""
    with postgres.database() as url:
        migrate_once(url)
        yield url


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("template") / "turnfold.db"
    migrate_once(f"sqlite:///{file}")
    return file


def migrate_once(url: str) -> None:
    engine = create_engine(url)
    migrate(engine)
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgres"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def empty_url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without any table."""
    if dialect == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
    else:
        with request.getfixturevalue("postgres").database() as url:
            yield url


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A migrated database; a test that alters tables starts from `empty_url` instead."""
    if dialect == "sqlite":
        file = shutil.copy(request.getfixturevalue("migrated_sqlite"), tmp_path / "turnfold.db")
        yield f"sqlite:///{file}"
    else:
        url = request.getfixturevalue("migrated_postgres")
        yield url
        empty(url)


def empty(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE " + ", ".join([*metadata.tables, "turnfold_search"])))
    engine.dispose()


@pytest.fixture
def empty_engine(empty_url: str) -> Iterator[Engine]:
    yield from engine_without_leak(empty_url)


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    yield from engine_without_leak(url)


def engine_without_leak(url: str) -> Iterator[Engine]:
    """The engine of a test, which ends by proving that no connection is still checked out."""
    engine = create_engine(url)
    yield engine
    checked_out = engine.pool.checkedout()  # type: ignore[attr-defined]
    engine.dispose()
    assert checked_out == 0


@pytest.fixture
def store(engine: Engine) -> SqlRepository:
    return SqlRepository(engine)
