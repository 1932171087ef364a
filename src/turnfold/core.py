"""The algorithm, written once: coroutines that await nothing but what they were handed.

Store, summarizer, sleep and clock come in through `Worker`; `compaction.py` drives it without a loop, `aio.py` awaits
it. Every call to the store is a transaction of its own, so that no connection is open while the summarizer works.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from turnfold.errors import CompactionInProgress, TurnfoldError
from turnfold.planning import (
    Bounds,
    Chunk,
    Limits,
    batches_to_condense,
    check_count,
    check_threshold,
    next_chunk,
    smallest_chunk_worth_a_call,
)
from turnfold.records import (
    CompactionStats,
    Lease,
    Progress,
    SummaryRecord,
    Tier,
    Turn,
    check_session_id,
    derived_summary_id,
)
from turnfold.repository import AsyncRepository, Repository
from turnfold.summarizer import DEFAULT_MAX_INPUT_TOKENS, FALLBACK_MODEL, AsyncSummarizerProtocol

__all__ = ["Always", "OnProgress", "WhileOver", "Worker", "fitted", "is_over", "run_if_needed"]

OnProgress = Callable[[Progress], None]

LEASE_SECONDS = 600.0
"""How long a lease lasts from each model call on: longer than a model may take, and what a dead worker blocks."""

POLL_SECONDS = 0.5
"""How often a caller that waits asks for the lease."""

PAGE_OF_TURNS = 200


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
    )
    total: Any = getattr(budget, "total", None)
    threshold = getattr(budget, "context_threshold", 0.75)
    check_count("total", total, at_least=1)
    check_threshold("context_threshold", threshold)
    if not await is_over(session_id, worker.store, total, threshold, reported_tokens):
        return None
    # What the provider counts and the store does not, such as tool definitions, stays however much is folded.
    beside = max(0, reported_tokens - await worker.store.get_session_token_count(session_id)) if reported_tokens else 0
    need = WhileOver(total * threshold - beside, smallest_chunk_worth_a_call(limits, total))
    try:
        stats = await worker.compact(session_id, limits, need)
    except CompactionInProgress:
        return None
    return stats if stats["tiers_used"] else None


class Always:
    """Every chunk is folded: the caller asked for it."""

    async def justifies(self, chunk: Chunk, session_id: str, store: AsyncRepository) -> bool:
        return chunk.length > 0


@dataclass(frozen=True)
class WhileOver:
    """A full chunk is folded; a partial one while the context is over the threshold and the chunk worth a call."""

    threshold_tokens: float
    smallest_chunk: int

    async def justifies(self, chunk: Chunk, session_id: str, store: AsyncRepository) -> bool:
        if chunk.is_full or chunk.tokens <= self.smallest_chunk:
            return chunk.is_full
        return await store.get_session_token_count(session_id) > self.threshold_tokens


@dataclass(frozen=True)
class Worker:
    """Who compacts: with which store and summarizer, and, handed in like these, how it sleeps, what keeps the release
    of the lease from being cancelled, and how long the lease lasts from each call of the model on."""

    store: AsyncRepository
    summarizer: AsyncSummarizerProtocol
    sleep: Callable[[float], Awaitable[None]]
    shield: Callable[[Awaitable[None]], Awaitable[None]] = lambda work: work
    bounds: Bounds = Bounds()  # noqa: RUF009
    on_progress: OnProgress | None = None
    lease_seconds: float = LEASE_SECONDS
    clock: Callable[[], float] = time.monotonic

    async def compact(
        self, session_id: str, limits: Limits, need: Always | WhileOver, *, wait_seconds: float = 0.0
    ) -> CompactionStats:
        lease = await self._acquire(session_id, wait_seconds)
        if lease is None:
            return _no_stats()
        run = _Run(self, session_id, limits, lease)
        try:
            await run.fold_leaves(need)
            await run.condense()
        except BaseException:
            with suppress(TurnfoldError):
                await self.shield(self.store.release_lease(run.lease))
            raise
        await self.shield(self.store.release_lease(run.lease))
        return run.stats

    async def _acquire(self, session_id: str, wait_seconds: float) -> Lease | None:
        """The lease, or None for a session without turns."""
        owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        while True:
            lease = await self.store.acquire_lease(session_id, owner=owner, seconds=self.lease_seconds)
            session = await self.store.get_session(session_id) if lease is None else None
            if lease is not None or session is None:
                return lease
            if wait_seconds <= 0:
                raise CompactionInProgress(
                    f"session {session_id!r} is being compacted by {session.lease_owner}, until "
                    f"{session.lease_expires_at} at the longest; call again later, give wait_seconds, or use "
                    "compact_if_needed, which lets the other work"
                )
            pause = min(wait_seconds, POLL_SECONDS)
            await self.sleep(pause)
            wait_seconds -= pause


class _Run:
    """One compaction of one session by one worker, from its lease to its stats."""

    def __init__(self, worker: Worker, session_id: str, limits: Limits, lease: Lease) -> None:
        self.lease = lease
        self.stats = _no_stats()
        self._worker = worker
        self._store = worker.store
        self._summarizer = worker.summarizer
        self._session_id = session_id
        self._limits = limits
        self._turns_to_compact = 0
        self._calls = 0
        self._started = worker.clock()
        takes_hook = getattr(worker.summarizer, "takes_before_call", False)
        self._hook: dict[str, Any] = {"before_call": self._renew_lease} if takes_hook else {}

    async def fold_leaves(self, need: Always | WhileOver) -> None:
        session = await self._store.get_session(self._session_id)
        if session is None:
            return
        self._turns_to_compact = session.last_position - session.covered_position - self._limits.fresh_tail_count
        newest = await self._store.get_newest_leaf(session.id)
        prior_summary = newest.content if newest else ""
        turns: list[Turn] = []
        is_complete = False
        while True:
            chunk = next_chunk(turns, self._limits, last_position=session.last_position, is_complete=is_complete)
            if not chunk.is_settled:
                limit = max(PAGE_OF_TURNS, len(turns))
                page = await self._store.get_uncovered_turns(
                    session.id, after_position=turns[-1].position if turns else 0, limit=limit
                )
                is_complete = len(page) < limit
                turns += page
            elif not self._is_out_of_bounds() and await need.justifies(chunk, session.id, self._store):
                prior_summary = await self._fold(turns[: chunk.length], prior_summary)
                del turns[: chunk.length]
            else:
                return

    async def condense(self) -> None:
        summaries = await self._store.get_uncompacted_summaries(self._session_id)
        depth = 0
        while summaries and depth <= max(summary.depth for summary in summaries):
            if not self._limits.may_condense_from(depth):
                return
            here = [summary for summary in summaries if summary.depth == depth]
            batches = batches_to_condense(
                here,
                min_fanout=self._limits.condensed_min_fanout,
                max_tokens=getattr(self._summarizer, "max_input_tokens", DEFAULT_MAX_INPUT_TOKENS),
            )
            for batch in batches:
                if self._is_out_of_bounds():
                    return
                summaries.append(await self._condense(batch))
            depth += 1

    async def _fold(self, turns: Sequence[Turn], prior_summary: str) -> str:
        await self._renew_lease_for_others()
        text, tier = await self._summarizer.summarize_turns(turns, prior_summary=prior_summary, **self._hook)
        times = [turn.created_at for turn in turns if turn.created_at is not None]
        await self._write(
            text,
            tier,
            depth=0,
            first_position=turns[0].position,
            last_position=turns[-1].position,
            descendant_count=len(turns),
            source_token_count=sum(turn.token_count for turn in turns),
            time_range_start=min(times),
            time_range_end=max(times),
            source_turn_ids=tuple(str(turn.id) for turn in turns),
        )
        self.stats["leaf_summaries_created"] += 1
        self.stats["turns_compacted"] += len(turns)
        self._report(depth=0)
        return text

    async def _condense(self, children: Sequence[SummaryRecord]) -> SummaryRecord:
        await self._renew_lease_for_others()
        text, tier = await self._summarizer.summarize_summaries(children, **self._hook)
        parent = await self._write(
            text,
            tier,
            depth=children[0].depth + 1,
            first_position=children[0].first_position,
            last_position=children[-1].last_position,
            descendant_count=sum(child.descendant_count for child in children),
            source_token_count=sum(child.token_count for child in children),
            time_range_start=min(child.time_range_start for child in children),
            time_range_end=max(child.time_range_end for child in children),
            child_ids=tuple(child.id for child in children),
        )
        self.stats["condensed_summaries_created"] += 1
        self._report(depth=parent.depth)
        return parent

    async def _renew_lease_for_others(self) -> None:
        """Before the work of a summarizer that does not renew before each of its calls."""
        if not self._hook:
            await self._renew_lease()

    async def _renew_lease(self) -> None:
        self.lease = await self._store.renew_lease(self.lease, seconds=self._worker.lease_seconds)
        self._calls += 1

    def _is_out_of_bounds(self) -> bool:
        return self._worker.bounds.are_reached(self._calls, self._worker.clock() - self._started)

    async def _write(self, text: str, tier: Tier, *, depth: int, first_position: int, **facts: Any) -> SummaryRecord:
        counter = self._store.token_counter
        model = FALLBACK_MODEL if tier == "fallback" else str(getattr(self._summarizer, "model_name", ""))
        summary = SummaryRecord(
            id=derived_summary_id(self._session_id, depth, first_position),
            session_id=self._session_id,
            depth=depth,
            content=text,
            token_count=counter.count(text),
            counter=counter.name,
            first_position=first_position,
            tier=tier,
            model=model,
            created_at=datetime.now(UTC),
            **facts,
        )
        await self._store.add_summary(summary, lease=self.lease)
        self.stats["tiers_used"].append(tier)
        return summary

    def _report(self, *, depth: int) -> None:
        if self._worker.on_progress is not None:
            compacted = self.stats["turns_compacted"]
            to_compact = max(self._turns_to_compact, compacted)
            self._worker.on_progress(Progress(turns_compacted=compacted, turns_to_compact=to_compact, depth=depth))


def _no_stats() -> CompactionStats:
    return CompactionStats(leaf_summaries_created=0, condensed_summaries_created=0, turns_compacted=0, tiers_used=[])


def fitted(summarizer: Any, memory_store: Repository | AsyncRepository) -> Any:
    """The summarizer, counting tokens as the store does where it can."""
    counting_with = getattr(summarizer, "counting_with", None)
    return summarizer if counting_with is None else counting_with(memory_store.token_counter)
