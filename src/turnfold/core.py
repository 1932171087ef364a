"""The algorithm, written once: coroutines that await nothing but what they were handed.

Store, summarizer, sleep and clock come in through `Worker`; `compaction.py` drives it without a loop, `aio.py` awaits
it.
"""

from __future__ import annotations

from typing import Any

from turnfold.errors import CompactionInProgress
from turnfold.folding import Always, Folding, WhileOver, no_stats
from turnfold.outcomes import Outcome
from turnfold.planning import Limits, check_count, check_threshold, smallest_chunk_worth_a_call
from turnfold.records import CompactionStats, RefoldStats, SessionRecord, check_session_id
from turnfold.refolding import OnRefoldProgress, Refolding, Stale, check_stale, no_refolds
from turnfold.repository import AsyncRepository, Repository
from turnfold.running import Run, Worker

__all__ = ["compact", "fitted", "is_over", "refold", "run_if_needed"]


async def compact(
    session_id: str, worker: Worker, limits: Limits, need: Always | WhileOver, *, wait_seconds: float = 0.0
) -> CompactionStats:
    check_session_id(session_id)
    stats = no_stats()

    async def work(run: Run) -> Outcome:
        nonlocal stats
        session = await run.store.get_session(session_id)
        if session is None:  # erased meanwhile
            return Outcome.NOTHING_TO_FOLD
        if session.covered_position:
            await Refolding(run).refold_newest_fallbacks()
        folding = Folding(run, session, await _counted(limits, session, run.store), need)
        stats = folding.stats
        return await folding.fold()

    await worker.hold(session_id, work, wait_seconds=wait_seconds)
    return stats


async def _counted(limits: Limits, session: SessionRecord, store: AsyncRepository) -> Limits:
    if limits.fresh_tail_tokens is None:
        return limits
    before_tail = max(0, session.last_position - limits.fresh_tail_count)
    return limits.counted(await store.get_session_turns(session.id, after_position=before_tail))


async def refold(
    session_id: str, worker: Worker, stale: Stale, on_progress: OnRefoldProgress | None, *, wait_seconds: float = 0.0
) -> RefoldStats:
    check_session_id(session_id)
    check_stale(stale)
    stats = no_refolds()

    async def work(run: Run) -> Outcome:
        nonlocal stats
        refolding = Refolding(run, on_progress)
        stats = refolding.stats
        return await refolding.refold_stale(stale)

    await worker.hold(session_id, work, wait_seconds=wait_seconds)
    return stats


async def is_over(
    session_id: str, store: AsyncRepository, token_budget: int, threshold: float, reported_tokens: int
) -> bool:
    check_session_id(session_id)
    check_count("token_budget", token_budget, at_least=1)
    check_threshold("threshold", threshold)
    check_count("reported_tokens", reported_tokens, at_least=0)
    tokens = await store.get_session_token_count(session_id)
    return max(tokens, reported_tokens) > token_budget * threshold


async def run_if_needed(session_id: str, worker: Worker, budget: Any, reported_tokens: int) -> CompactionStats | None:
    limits = Limits(
        fresh_tail_count=getattr(budget, "fresh_tail_count", 16),
        leaf_chunk_tokens=getattr(budget, "leaf_chunk_tokens", 20_000),
        condensed_min_fanout=getattr(budget, "condensed_min_fanout", 4),
        fresh_tail_tokens=getattr(budget, "fresh_tail_tokens", None),
    )
    total: Any = getattr(budget, "total", None)
    threshold = getattr(budget, "context_threshold", 0.75)
    check_count("total", total, at_least=1)
    check_threshold("context_threshold", threshold)
    check_count("reported_tokens", reported_tokens, at_least=0)
    # The reserves are no room for turns; what the provider reports counts those for system prompt and tools, too.
    beside_turns = getattr(budget, "reserve_system", 0) + getattr(budget, "reserve_tools", 0)
    total = max(1, total - beside_turns - getattr(budget, "reserve_answer", 0))
    reported_tokens = max(0, reported_tokens - beside_turns)
    if not await is_over(session_id, worker.store, total, threshold, reported_tokens):
        worker.tell(session_id, Outcome.BELOW_THRESHOLD)
        return None
    # What the provider counts and the store does not, such as tool definitions, stays however much is folded.
    beside = max(0, reported_tokens - await worker.store.get_session_token_count(session_id)) if reported_tokens else 0
    need = WhileOver(total * threshold - beside, smallest_chunk_worth_a_call(limits, total))
    try:
        stats = await compact(session_id, worker, limits, need)
    except CompactionInProgress:
        return None
    return stats if stats["tiers_used"] else None


def fitted(summarizer: Any, memory_store: Repository | AsyncRepository) -> Any:
    """The summarizer, counting tokens as the store does where it can."""
    counting_with = getattr(summarizer, "counting_with", None)
    return summarizer if counting_with is None else counting_with(memory_store.token_counter)
