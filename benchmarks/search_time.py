"""How long a search in a session of 100,000 turns takes: the median and the slowest of 50 questions.

Run: python -m benchmarks.search_time
"""

from __future__ import annotations

import json
import random
import statistics
import time

from benchmarks.databases import DATA, STORES, locomo_turns
from benchmarks.locomo_recall import questions
from turnfold import Turn
from turnfold.recall import search

TURNS, QUESTIONS = 100_000, 50


def turns() -> list[Turn]:
    """The turns of LoCoMo again and again, each time with some of their words exchanged."""
    spoken = [
        turn
        for sample in json.loads((DATA / "locomo5.json").read_text())
        for turn in locomo_turns(sample["conversation"])
    ]
    chance = random.Random(1)
    words = [word for turn in spoken for word in str(turn.content).split()]
    many = []
    for index in range(TURNS):
        said = str(spoken[index % len(spoken)].content).split()
        for _ in range(len(said) // 4):
            said[chance.randrange(len(said))] = chance.choice(words)
        many.append(Turn(spoken[index % len(spoken)].role, " ".join(said), name=spoken[index % len(spoken)].name))
    return many


def main() -> None:
    many = turns()
    asked = [question for _, question, _ in questions()]
    asked = asked[:: len(asked) // QUESTIONS][:QUESTIONS]
    for database, opened in STORES.items():
        with opened() as store:
            started = time.perf_counter()
            for start in range(0, TURNS, 1_000):
                store.append_turns("s", many[start : start + 1_000])
            writing = time.perf_counter() - started
            times = []
            for question in asked:
                started = time.perf_counter()
                assert search("s", store, question)
                times.append(time.perf_counter() - started)
        print(
            f"{database}: search in {TURNS:,} turns takes {statistics.median(times) * 1000:.0f} ms at the median of "
            f"{len(asked)} questions, {max(times) * 1000:.0f} ms at most; they were written in {writing:.1f} s"
        )


if __name__ == "__main__":
    main()
