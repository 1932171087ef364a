"""What the processes of test_processes.py do; in a module of its own, so that a fork server can import it once."""

from __future__ import annotations

import os
import random
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import turnfold
from turnfold import CompactionInProgress, Prompt, SqlRepository, Summarizer, Turn

LIMITS = {"leaf_chunk_tokens": 600, "condensed_min_fanout": 4}


def some_turns(count: int, start: int = 0) -> list[Turn]:
    return [
        Turn(
            "user" if number % 2 else "assistant",
            f"Turn {number}: the parcel with code {number * 7} is in depot {number % 9}.",
        )
        for number in range(start, start + count)
    ]


def opened(url: str) -> SqlRepository:
    return SqlRepository(turnfold.create_engine(url))


def model_that_counts(log: Path, seconds: float = 0.0):  # type: ignore[no-untyped-def]
    """A model that notes each call in a file before it answers."""

    def model(prompt: Prompt) -> str:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(seconds)
        return f"A summary of {len(prompt.source)} characters."

    return model


def compact(url: str, session_id: str, log: Path, errors: Path, barrier: Barrier | None = None) -> None:
    """Compact the session until nobody is at it; an error that is not `CompactionInProgress` is noted."""
    store = opened(url)
    summarizer = Summarizer(model_that_counts(log))
    if barrier is not None:
        barrier.wait(60)
    try:
        turnfold.compact_session(session_id, store, summarizer, **LIMITS)
    except CompactionInProgress:
        pass
    except BaseException as error:
        note(errors, error)
    store._engine.dispose()


def append(url: str, session_id: str, count: int, errors: Path, barrier: Barrier) -> None:
    store = opened(url)
    barrier.wait(60)
    try:
        for number in range(count):
            store.append_turns(session_id, [Turn("user", f"{os.getpid()} says {number}")])
    except BaseException as error:
        note(errors, error)
    store._engine.dispose()


def open_each(urls: list[str], errors: Path, barrier: Barrier) -> None:
    """Be the first in every file, together with the others."""
    for url in urls:
        barrier.wait(60)
        try:
            engine = turnfold.create_engine(url)
            engine.connect().close()
            engine.dispose()
        except BaseException as error:
            note(errors, error)


def migrate_and_append(url: str, number: int, errors: Path, barrier: Barrier) -> None:
    """What every replica of a service does when it starts."""
    barrier.wait(60)
    try:
        engine = turnfold.create_engine(url)
        turnfold.migrate(engine)
        SqlRepository(engine).append_turns("new", [Turn("user", f"{number}-{part}") for part in range(3)])
        engine.dispose()
    except BaseException as error:
        note(errors, error)


def compact_slowly(url: str, session_id: str, log: Path, seed: int) -> None:
    """Compact with a model that takes a moment, until killed."""
    chance = random.Random(seed)
    store = opened(url)
    summarizer = Summarizer(model_that_counts(log, seconds=chance.uniform(0, 0.004)))
    turnfold.compact_session(session_id, store, summarizer, **LIMITS)


def note(errors: Path, error: BaseException) -> None:
    with errors.open("a") as file:
        file.write(f"{type(error).__name__}: {error}\n")
