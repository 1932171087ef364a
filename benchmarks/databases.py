"""A fresh, migrated store on each database, and where the real conversations lie."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.databases import postgres_server
from turnfold import SqlRepository, Turn, create_engine, migrate

DATA = Path(os.environ.get("TURNFOLD_BENCHMARK_DATA", Path(__file__).parents[2] / "shared" / "data"))

# With a number before it, what o200k counts as 75 tokens with the overhead of a message.
WORDS = (
    "The build fails on the second machine because the cache key does not hold the compiler version, so I would rather "
    "change the key than clear the cache again, and then we look at the timing of the slow tests in the morning, which "
    "is when Anna wanted the numbers for the review of the release, and the open question about the retries of workers"
)


@contextmanager
def sqlite_store() -> Iterator[SqlRepository]:
    with tempfile.TemporaryDirectory() as folder:
        yield from _store(f"sqlite:///{folder}/benchmark.db")


@contextmanager
def postgres_store() -> Iterator[SqlRepository]:
    with postgres_server() as server, server.database() as url:
        yield from _store(url)


STORES = {"sqlite": sqlite_store, "postgres": postgres_store}


def _store(url: str) -> Iterator[SqlRepository]:
    engine = create_engine(url)
    migrate(engine)
    yield SqlRepository(engine)
    engine.dispose()


def spoken(start: int, count: int) -> list[Turn]:
    """Turns of about 75 tokens, no two alike."""
    return [
        Turn("user" if number % 2 == 0 else "assistant", f"{number} {WORDS}") for number in range(start, start + count)
    ]


def real_conversations() -> Iterator[tuple[str, list[Turn]]]:
    """Every session of the tau-bench transcripts and of LoCoMo (one session for each of its conversations)."""
    with (DATA / "tau_airline.jsonl").open() as file:
        for number, line in enumerate(file):
            messages = json.loads(line)["messages"]
            yield f"tau-{number}", [Turn.from_message(message, id=f"m{i}") for i, message in enumerate(messages)]
    for sample in json.loads((DATA / "locomo5.json").read_text()):
        yield f"locomo-{sample['sample_id']}", list(locomo_turns(sample["conversation"]))


def locomo_turns(conversation: dict[str, Any]) -> Iterator[Turn]:
    number = 1
    while f"session_{number}" in conversation:
        start = datetime.strptime(conversation[f"session_{number}_date_time"], "%I:%M %p on %d %B, %Y").replace(
            tzinfo=UTC
        )
        for index, said in enumerate(conversation[f"session_{number}"]):
            yield Turn(
                "user" if said["speaker"] == conversation["speaker_a"] else "assistant",
                said["text"],
                id=said["dia_id"],
                name=said["speaker"],
                created_at=start + timedelta(seconds=30 * index),
                attributes={key: said[key] for key in ("blip_caption",) if key in said},
            )
        number += 1
