"""The three functions of turnfold, driven without an event loop; the algorithm stands in `core.py`."""

from __future__ import annotations

import time
from typing import Any

from turnfold.core import Always, OnProgress, Worker, fitted, is_over, run_if_needed
from turnfold.drive import awaitable, drive, immediately
from turnfold.planning import Bounds, Limits
from turnfold.records import CompactionStats, check_session_id
from turnfold.repository import Repository
from turnfold.summarizer import SummarizerProtocol

__all__ = ["OnProgress", "compact_if_needed", "compact_session", "should_compact"]


def compact_session(
    session_id: str,
    memory_store: Repository,
    summarizer: SummarizerProtocol,
    *,
    fresh_tail_count: int = 16,
    leaf_chunk_tokens: int = 20_000,
    condensed_min_fanout: int = 4,
    max_condense_depth: int | None = None,
    wait_seconds: float = 0.0,
    max_model_calls: int | None = None,
    deadline: float | None = None,
    on_progress: OnProgress | None = None,
) -> CompactionStats:
    """Fold all turns of a session but the pinned ones, the newest `fresh_tail_count` and what waits for a tool.

    Turns are folded in chunks of about `leaf_chunk_tokens` tokens, then `condensed_min_fanout` or more summaries of
    one depth into one of the next, from depths up to `max_condense_depth` (None or -1: no bound). Each summary is
    written as soon as it is made: after an interruption the next call goes on. A session without turns gives empty
    stats. `on_progress` is called after each summary. After `max_model_calls` calls of the model, or `deadline`
    seconds, no new summary is begun; what is done stays, and the next call goes on.

    Raises `InvalidArgument` for a limit out of range, `CompactionInProgress` where another worker compacts the session
    and is not done within `wait_seconds`, `LeaseLost` where one took over meanwhile, and whatever the model raises.
    """
    check_session_id(session_id)
    limits = Limits(
        fresh_tail_count=fresh_tail_count,
        leaf_chunk_tokens=leaf_chunk_tokens,
        condensed_min_fanout=condensed_min_fanout,
        max_condense_depth=max_condense_depth,
    )
    bounds = Bounds(max_model_calls=max_model_calls, deadline=deadline)
    worker = _worker(memory_store, summarizer, bounds, on_progress)
    return drive(worker.compact(session_id, limits, Always(), wait_seconds=wait_seconds))


def should_compact(
    session_id: str,
    memory_store: Repository,
    token_budget: int,
    threshold: float = 0.75,
    *,
    reported_tokens: int = 0,
) -> bool:
    """Whether the active context takes more than `threshold` of `token_budget` tokens. Summarizes nothing, and takes
    the same time at any length of the session.

    `reported_tokens` are the prompt tokens that the provider last reported, which count system prompt and tool
    definitions too; the larger count decides. Raises `InvalidArgument` unless `token_budget` is at least 1,
    `threshold` above 0 and at most 1, and `reported_tokens` at least 0.
    """
    return drive(is_over(session_id, immediately(memory_store), token_budget, threshold, reported_tokens))


def compact_if_needed(
    session_id: str,
    memory_store: Repository,
    summarizer: SummarizerProtocol,
    budget: Any,
    *,
    reported_tokens: int = 0,
    max_model_calls: int | None = None,
    deadline: float | None = None,
    on_progress: OnProgress | None = None,
) -> CompactionStats | None:
    """Compact the session if `should_compact` says so; to be called after every turn.

    `budget` is any object: `total` (tokens) is read off it, and `context_threshold`, `fresh_tail_count`,
    `leaf_chunk_tokens` and `condensed_min_fanout`, with the defaults of `TokenBudget` where it lacks one. A last,
    partial chunk waits while it is no larger than the summary that would replace it, or once the context is below the
    threshold. `reported_tokens` as for `should_compact`, the rest as for `compact_session`.

    Returns None where nothing was written: below the threshold, nothing worth folding, or another worker at it. Raises
    as `compact_session` does, but for `CompactionInProgress`.
    """
    bounds = Bounds(max_model_calls=max_model_calls, deadline=deadline)
    worker = _worker(memory_store, summarizer, bounds, on_progress)
    return drive(run_if_needed(session_id, worker, budget, reported_tokens))


def _worker(
    memory_store: Repository, summarizer: SummarizerProtocol, bounds: Bounds, on_progress: OnProgress | None
) -> Worker:
    return Worker(
        immediately(memory_store),
        immediately(fitted(summarizer, memory_store)),
        sleep=awaitable(time.sleep),
        bounds=bounds,
        on_progress=on_progress,
    )
