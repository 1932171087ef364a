"""Opens what the commands work on: databases, stores, models, embedders and files."""

from __future__ import annotations

import importlib
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Engine

import turnfold
from turnfold import Embedder, SqlRepository, Summarizer
from turnfold.errors import DatabaseUnavailable, InvalidArgument, UnknownSession, UnreadableConversation
from turnfold.integrations.openai_messages import STANDARD_INPUT
from turnfold.models.llm import LLM


@contextmanager
def engine(url: str, *, may_create: bool = False) -> Iterator[Engine]:
    made = turnfold.create_engine(url)
    file = made.url.database
    if made.dialect.name == "sqlite" and not may_create and file and not Path(file).exists():
        raise DatabaseUnavailable(f"there is no database file {file}; `turnfold migrate` makes one")
    try:
        yield made
    finally:
        made.dispose()


@contextmanager
def store(url: str, schema: str | None, embedder: str | None = None) -> Iterator[SqlRepository]:
    made = None if embedder is None else load_embedder(embedder)
    with engine(url) as opened:
        yield SqlRepository(opened, schema, embedder=made)


@contextmanager
def summarizer(model: str, base_url: str | None) -> Iterator[Summarizer]:
    loaded = turnfold.load_model(model, base_url=base_url)
    try:
        with warnings.catch_warnings():
            # The temperature is turnfold's own wish: whoever reads this could do nothing about a model that takes none.
            warnings.filterwarnings("ignore", "Sampling parameters")
            yield Summarizer(loaded)
    finally:
        if isinstance(loaded, LLM):
            loaded.close()


def session(store: SqlRepository, session_id: str) -> turnfold.SessionRecord:
    found = store.get_session(session_id)
    if found is None:
        raise UnknownSession(f"there is no session {session_id!r} in this database; `turnfold status` lists them")
    return found


@contextmanager
def opened(file: str) -> Iterator[BinaryIO]:
    """The file, seekable; standard input is copied first."""
    if file == STANDARD_INPUT:
        with tempfile.TemporaryFile() as copy:
            while block := sys.stdin.buffer.read(1 << 20):
                copy.write(block)
            copy.seek(0)
            yield copy
        return
    try:
        there = Path(file).open("rb")  # noqa: SIM115
    except OSError as error:
        raise UnreadableConversation(f"{file}: {error.strerror or error}; nothing was written") from None
    with there:
        yield there


def load_embedder(name: str) -> Embedder:
    """The embedder at `module:attribute`, of what is installed or stands in the working directory."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        embedder = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"embedder {name!r}: {error}; give module:attribute of a function that takes texts and gives vectors"
        ) from None
    finally:
        sys.path.remove("")
    if not callable(embedder):
        raise InvalidArgument(f"embedder {name!r} is no function, but {type(embedder).__name__}")
    made: Embedder = embedder
    return made
