"""A backlog of 100,000 turns folded by one call: time outside the model against ten times 10,000, and memory.

Run: python -m benchmarks.backlog
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from benchmarks.databases import STORES, spoken
from turnfold import Summarizer, compact_session

SMALL, LARGE = 10_000, 100_000


def main() -> None:
    for name in STORES:
        small, large = (measured(name, turns) for turns in (SMALL, LARGE))
        ratio = large[0] / (small[0] * LARGE / SMALL)
        print(
            f"{name}: {SMALL:,} turns {small[0]:.2f} s, {LARGE:,} turns {large[0]:.2f} s outside the model "
            f"({ratio:.2f} times ten of the small ones); peak memory {large[1]:.0f} MB"
        )
        assert ratio <= 3
        assert large[1] < 300


def measured(name: str, turns: int) -> tuple[float, float]:
    """Seconds outside the model and peak megabytes of a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.backlog", name, str(turns)], capture_output=True, text=True, check=True
    )
    seconds, megabytes = done.stdout.split()
    return float(seconds), float(megabytes)


def fold(name: str, count: int) -> None:
    in_model = 0.0

    def model(prompt: str) -> str:
        nonlocal in_model
        started = time.perf_counter()
        answer = f"Part {len(prompt)}. They changed the cache key to hold the compiler version. " * 70
        in_model += time.perf_counter() - started
        return answer

    with STORES[name]() as store:
        for start in range(0, count, 1_000):
            store.append_turns("backlog", spoken(start, 1_000))
        started = time.perf_counter()
        stats = compact_session("backlog", store, Summarizer(model))
        seconds = time.perf_counter() - started - in_model
        session = store.get_session("backlog")
        assert stats["turns_compacted"] == count - 16
        assert session is not None
        assert session.covered_position == count - 16
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fold(sys.argv[1], int(sys.argv[2]))
    else:
        main()
