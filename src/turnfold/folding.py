"""Folds turns into leaves, and summaries into those of the next depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from turnfold.outcomes import Outcome, log
from turnfold.planning import Chunk, Limits, batches_to_condense, next_chunk
from turnfold.records import CompactionStats, Progress, SessionRecord, SummaryRecord, Turn, derived_summary_id
from turnfold.repository import AsyncRepository
from turnfold.running import Made, Run
from turnfold.summarizer import DEFAULT_MAX_INPUT_TOKENS

__all__ = ["Always", "Folding", "WhileOver", "no_stats"]

PAGE_OF_TURNS = 100
"""So many are read at once. What hundreds of runs in one event loop hold, the garbage collector stops the loop for."""


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


class Folding:
    """One compaction: its stats, and why it ended."""

    def __init__(self, run: Run, session: SessionRecord, limits: Limits, need: Always | WhileOver) -> None:
        self.stats = no_stats()
        self._run = run
        self._session = session
        self._store = run.store
        self._limits = limits
        self._need = need
        evictable = session.last_position - limits.tail_count
        self._turns_to_compact = evictable - session.covered_position
        self._uncompacted: list[SummaryRecord] = []

    async def fold(self) -> Outcome:
        if self._session.covered_position:
            self._uncompacted = await self._store.get_uncompacted_summaries(self._session.id)
        ended = await self._fold_leaves()
        ended = await self._condense() or ended
        is_bound = ended in (Outcome.MAX_MODEL_CALLS, Outcome.DEADLINE)
        return Outcome.COMPACTED if self.stats["tiers_used"] and not is_bound else ended

    async def _fold_leaves(self) -> Outcome:
        session = self._session
        newest = await self._store.get_newest_leaf(session.id) if session.covered_position else None
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
                continue
            ended = await self._reason_to_end(chunk)
            if ended is not None:
                return ended
            prior_summary = await self._fold(turns[: chunk.length], prior_summary)
            del turns[: chunk.length]

    async def _reason_to_end(self, chunk: Chunk) -> Outcome | None:
        if not chunk.length:
            return Outcome.PENDING_CALL if chunk.waits_for_answer else Outcome.NOTHING_TO_FOLD
        if bound := self._run.bound_reached:
            return bound
        is_justified = await self._need.justifies(chunk, self._run.session_id, self._store)
        return None if is_justified else Outcome.TOO_LITTLE_TO_FOLD

    async def _condense(self) -> Outcome | None:
        """Condense through every depth; the bound that ended it early."""
        summaries = self._uncompacted
        depth = 0
        while summaries and depth <= max(summary.depth for summary in summaries):
            if not self._limits.may_condense_from(depth):
                break
            here = [summary for summary in summaries if summary.depth == depth]
            batches = batches_to_condense(
                here,
                min_fanout=self._limits.condensed_min_fanout,
                max_tokens=getattr(self._run.worker.summarizer, "max_input_tokens", DEFAULT_MAX_INPUT_TOKENS),
            )
            for batch in batches:
                if bound := self._run.bound_reached:
                    return bound
                await self._condense_batch(batch)
            depth += 1
        return None

    async def _fold(self, turns: Sequence[Turn], prior_summary: str) -> str:
        made = await self._run.summarize_turns(turns, prior_summary)
        times = [turn.created_at for turn in turns if turn.created_at is not None]
        leaf = await self._write(
            made,
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
        return leaf.content

    async def _condense_batch(self, children: Sequence[SummaryRecord]) -> None:
        made = await self._run.summarize_summaries(children)
        parent = await self._write(
            made,
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

    async def _write(self, made: Made, *, depth: int, first_position: int, **facts: Any) -> SummaryRecord:
        session_id = self._run.session_id
        summary = SummaryRecord(
            id=derived_summary_id(session_id, depth, first_position),
            session_id=session_id,
            depth=depth,
            first_position=first_position,
            created_at=datetime.now(UTC),
            **made.facts(),
            **facts,
        )
        await self._store.add_summary(summary, lease=self._run.lease)
        self._uncompacted.append(summary)
        self.stats["tiers_used"].append(summary.tier)
        if summary.tier == "fallback":
            log.warning("session %r: no answer of the model could become summary %s", session_id, summary.id)
        return summary

    def _report(self, *, depth: int) -> None:
        if self._run.worker.on_progress is not None:
            compacted = self.stats["turns_compacted"]
            to_compact = max(self._turns_to_compact, compacted)
            self._run.worker.on_progress(Progress(turns_compacted=compacted, turns_to_compact=to_compact, depth=depth))


def no_stats() -> CompactionStats:
    return CompactionStats(leaf_summaries_created=0, condensed_summaries_created=0, turns_compacted=0, tiers_used=[])
