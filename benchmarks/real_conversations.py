"""Real conversations in, small limits, and out again: equal on both databases, every turn equal to its source.

Run: python -m benchmarks.real_conversations
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from benchmarks.databases import STORES, real_conversations
from turnfold import SqlRepository, Summarizer, TokenBudget, Turn, assemble_context, compact_session, extractive
from turnfold.records import GIVEN_BY_CALLER


def main() -> None:
    conversations = list(real_conversations())
    results = {}
    for name, store in STORES.items():
        with store() as opened:
            results[name] = [fold(opened, session_id, turns) for session_id, turns in conversations]
    for result in results["sqlite"], results["postgres"]:
        for (session_id, turns), (stored, _, _) in zip(conversations, result, strict=True):
            check_equal_to_source(session_id, turns, stored)
    turns = sum(len(stored) for stored, _, _ in results["sqlite"])
    trees = [tree for _, tree, _ in results["sqlite"]]
    print(f"sessions {len(conversations)}, turns {turns}")
    print(f"summaries {sum(map(len, trees))}, deepest {max(summary['depth'] for tree in trees for summary in tree)}")
    for number, what in enumerate(["turns", "trees", "contexts"]):
        equal = [one[number] for one in results["sqlite"]] == [other[number] for other in results["postgres"]]
        print(f"{what} equal on sqlite and postgres: {equal}")
        assert equal
    print("every turn equal to its source on both: True")


def fold(store: SqlRepository, session_id: str, turns: list[Turn]) -> tuple[list[Turn], list[dict[str, Any]], Any]:
    """The session after it was compacted, free of what differs between two runs: the time of the run."""
    store.append_turns(session_id, [replace(turn, created_at=turn.created_at or FIXED) for turn in turns])
    compact_session(
        session_id, store, Summarizer(extractive), fresh_tail_count=8, leaf_chunk_tokens=1_000, condensed_min_fanout=3
    )
    tree = [
        {name: getattr(summary, name) for name in summary.__dataclass_fields__ if name != "created_at"}
        for summary in store.get_summaries(session_id)
    ]
    context = assemble_context(session_id, store, TokenBudget(total=16_000, fresh_tail_count=8))
    return store.get_session_turns(session_id), tree, (context.messages, context.token_count, context.left_out)


def check_equal_to_source(session_id: str, turns: list[Turn], stored: list[Turn]) -> None:
    assert len(turns) == len(stored), session_id
    for given, kept in zip(turns, stored, strict=True):
        for name in GIVEN_BY_CALLER:
            value = getattr(given, name)
            expected = given.is_pinned if name == "pinned" else (value or FIXED) if name == "created_at" else value
            assert getattr(kept, name) == expected, (session_id, given.id, name)
        assert kept.to_message() == given.to_message(), (session_id, given.id)


FIXED = next(turns[0].created_at for _, turns in reversed(list(real_conversations())) if turns[0].created_at)

if __name__ == "__main__":
    main()
