"""Turns larger than every limit, on both databases: kept whole, folded, and cheap to look at."""

from __future__ import annotations

from turnfold import (
    SqlRepository,
    Summarizer,
    TokenBudget,
    Turn,
    assemble_context,
    check,
    compact_session,
    extractive,
)


def test_twenty_megabytes_without_structure_are_folded_and_kept(store: SqlRepository) -> None:
    content = "\0\ud800漢" + "x" * 20_000_000
    store.append_turns("s", [Turn("tool", content)])
    assert assemble_context("s", store, TokenBudget(total=5_000)).token_count <= 5_000
    compact_session("s", store, Summarizer(extractive), fresh_tail_count=0)
    assert store.get_session_turns("s")[0].content == content
    assert store.get_session_token_count("s") <= 1_300
    assert check(store) == []
