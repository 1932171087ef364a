"""The three functions of turnfold, driven without an event loop; the algorithm stands in `core.py`."""

from __future__ import annotations

import time
from typing import Any

from turnfold.core import compact, fitted, is_over, refold, run_if_needed
from turnfold.drive import awaitable, drive, immediately
from turnfold.folding import Always
from turnfold.planning import Bounds, Limits
from turnfold.records import CompactionStats, RefoldStats
from turnfold.refolding import FALLBACKS, OnRefoldProgress, Stale
from turnfold.repository import Repository
from turnfold.running import OnOutcome, OnProgress, Worker
from turnfold.summarizer import SummarizerProtocol

__all__ = ["compact_if_needed", "compact_session", "refold_session", "should_compact"]


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
    on_outcome: OnOutcome | None = None,
) -> CompactionStats:
    """Fold all turns of a session but the pinned ones, the newest `fresh_tail_count` and what waits for a tool.

    Turns are folded in chunks of about `leaf_chunk_tokens` tokens, then `condensed_min_fanout` or more summaries of
    one depth into one of the next, from depths up to `max_condense_depth` (None or -1: no bound). Each summary is
    written as soon as it is made: after an interruption the next call goes on. A session without turns gives empty
    stats. After `max_model_calls` calls of the model, or `deadline` seconds, no new summary is begun; what is done
    stays, and the next call goes on. Before anything new is folded, the newest three summaries of tier `fallback` are
    made again (see `refold_session`), each twice at most.

    `on_progress` is called after each summary, `on_outcome` at the end, an error included, with the `Outcome` that
    tells why the run ended; the logger `turnfold` tells it, too.

    Raises `InvalidArgument` for a limit out of range, `CompactionInProgress` where another worker compacts the session
    and is not done within `wait_seconds`, `LeaseLost` where one took over meanwhile, and whatever the model raises.
    """
    limits = Limits(
        fresh_tail_count=fresh_tail_count,
        leaf_chunk_tokens=leaf_chunk_tokens,
        condensed_min_fanout=condensed_min_fanout,
        max_condense_depth=max_condense_depth,
    )
    bounds = Bounds(max_model_calls=max_model_calls, deadline=deadline)
    worker = _worker(memory_store, summarizer, bounds, on_progress, on_outcome)
    return drive(compact(session_id, worker, limits, Always(), wait_seconds=wait_seconds))


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
    on_outcome: OnOutcome | None = None,
) -> CompactionStats | None:
    """Compact the session if `should_compact` says so; to be called after every turn.

    `budget` is any object: `total` (tokens) is read off it, and `context_threshold`, `fresh_tail_count`,
    `leaf_chunk_tokens`, `condensed_min_fanout` and `fresh_tail_tokens`, with the defaults of `TokenBudget` where it
    lacks one. A last, partial chunk waits while it is no larger than the summary that would replace it, or once the
    context is below the threshold. `reported_tokens` as for `should_compact`, the rest as for `compact_session`.

    Returns None where nothing was written: below the threshold, nothing worth folding, or another worker at it. Raises
    as `compact_session` does, but for `CompactionInProgress`.
    """
    bounds = Bounds(max_model_calls=max_model_calls, deadline=deadline)
    worker = _worker(memory_store, summarizer, bounds, on_progress, on_outcome)
    return drive(run_if_needed(session_id, worker, budget, reported_tokens))


def refold_session(
    session_id: str,
    memory_store: Repository,
    summarizer: SummarizerProtocol,
    *,
    stale: Stale = FALLBACKS,
    wait_seconds: float = 0.0,
    max_model_calls: int | None = None,
    deadline: float | None = None,
    on_progress: OnRefoldProgress | None = None,
    on_outcome: OnOutcome | None = None,
) -> RefoldStats:
    """Make summaries again from their sources, and the summaries above them after them; no link moves.

    `stale` says which: those of tier `"fallback"`, those of another `"prompt_version"` than the summarizer's, or those
    of another `"model"`. A summary for which the model has no usable answer keeps its text. Each new text is written
    as soon as it is made; after an interruption the next call, or the next compaction, goes on with what stands above
    it. The rest is as for `compact_session`.

    Raises `InvalidArgument` for another name in `stale`, and what `compact_session` raises.
    """
    bounds = Bounds(max_model_calls=max_model_calls, deadline=deadline)
    worker = _worker(memory_store, summarizer, bounds, None, on_outcome)
    return drive(refold(session_id, worker, stale, on_progress, wait_seconds=wait_seconds))


def _worker(
    memory_store: Repository,
    summarizer: SummarizerProtocol,
    bounds: Bounds,
    on_progress: OnProgress | None,
    on_outcome: OnOutcome | None,
) -> Worker:
    return Worker(
        immediately(memory_store),
        immediately(fitted(summarizer, memory_store)),
        sleep=awaitable(time.sleep),
        bounds=bounds,
        on_progress=on_progress,
        on_outcome=on_outcome,
    )
