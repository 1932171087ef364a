"""A live conversation: 2,000 turns of 75 tokens, compact_if_needed after every turn, a budget of 30,000 tokens.

Run: python -m benchmarks.live_conversation
"""

from __future__ import annotations

import time

from benchmarks.databases import STORES, spoken
from turnfold import ExactCounter, Summarizer, TokenBudget, compact_if_needed

TURNS = 2_000
BUDGET = TokenBudget(total=30_000)


def main() -> None:
    exact = ExactCounter()
    for name, opened in STORES.items():
        sent: list[int] = []

        def model(prompt: str, sent: list[int] = sent) -> str:
            sent.append(exact.count(prompt))
            return "They changed the cache key to hold the compiler version, and did not clear the cache. " * 70

        with opened() as store:
            summarizer = Summarizer(model)
            started = time.perf_counter()
            highest = 0
            for number in range(TURNS):
                store.append_turns("live", spoken(number, 1))
                compact_if_needed("live", store, summarizer, BUDGET)
                highest = max(highest, store.get_session_token_count("live"))
            seconds = time.perf_counter() - started
            own = sum(exact.count(str(turn.content)) + 4 for turn in store.get_session_turns("live"))
            print(
                f"{name}: {len(sent)} model calls, {sum(sent):,} tokens sent, {sum(sent) / own:.2f} times the turns' "
                f"own {own:,}; active context at most {highest:,}; {seconds / TURNS * 1000:.1f} ms a turn"
            )
            assert len(sent) <= 15
            assert sum(sent) <= 1.3 * own


if __name__ == "__main__":
    main()
