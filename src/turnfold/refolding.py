"""Makes summaries again from their sources, and their ancestors after them. No link moves, and no turn is touched.

A summary and its parent change in one transaction where the parent would no longer be smaller than its children;
else the parent is marked outdated with the same write, so that a run that is interrupted is finished by the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, get_args

from turnfold.errors import InvalidArgument
from turnfold.outcomes import Outcome
from turnfold.records import RefoldProgress, RefoldStats, SummaryRecord
from turnfold.running import Made, Run

__all__ = ["FALLBACKS", "OnRefoldProgress", "Refolding", "Stale", "check_stale", "no_refolds"]

Reason = Literal["fallback", "prompt_version", "model"]
Stale = Collection[Reason]
FALLBACKS: Stale = frozenset({"fallback"})
OnRefoldProgress = Callable[[RefoldProgress], None]

REFOLDS_PER_RUN = 3
"""How many fallback summaries a normal run makes again before it folds anything new."""

MOST_VAIN_ATTEMPTS = 2
"""How often normal runs try a summary for which the model has no usable answer."""


class Refolding:
    """One refolding: its stats, and why it ended."""

    def __init__(self, run: Run, on_progress: OnRefoldProgress | None = None) -> None:
        self.stats = no_refolds()
        self._run = run
        self._store = run.store
        self._on_progress = on_progress
        self._may_grow = True

    async def refold_stale(self, stale: Stale) -> Outcome:
        """Make again all summaries that are `stale`, and those above them."""
        found = await self._store.get_summaries(self._run.session_id)
        return await self._refold([summary for summary in found if self._is_stale(summary, stale)])

    async def refold_newest_fallbacks(self) -> None:
        """Make again the newest few of tier `fallback`, unless that was tried in vain; none may grow, since a
        compaction never makes the context larger."""
        self._may_grow = False
        newest = await self._store.get_stale_summaries(
            self._run.session_id, max_attempts=MOST_VAIN_ATTEMPTS, limit=REFOLDS_PER_RUN
        )
        await self._refold(newest)

    def _is_stale(self, summary: SummaryRecord, stale: Stale) -> bool:
        summarizer: Any = self._run.worker.summarizer
        prompts = getattr(summarizer, "prompts", None)
        reasons = {
            "fallback": summary.tier == "fallback",
            "prompt_version": prompts is not None and summary.prompt_version != prompts.version,
            "model": summary.model != getattr(summarizer, "model_name", ""),
        }
        return summary.is_outdated or any(reasons[name] for name in stale)

    async def _refold(self, chosen: Sequence[SummaryRecord]) -> Outcome:
        waiting = {summary.id: (summary.depth, summary.first_position) for summary in chosen}
        done = 0
        while waiting:
            if bound := self._run.bound_reached:
                return bound
            id = min(waiting, key=lambda id: waiting[id])
            old = await self._store.get_summary(id)
            chain = await self._chain(old)
            if not chain:
                return Outcome.MODEL_FAILED
            await self._store.replace_summaries(chain, lease=self._run.lease)
            self._count(chain)
            for made in chain:
                waiting.pop(made.id, None)
            parent_id = chain[-1].parent_id
            if parent_id is not None and chain[-1].refold_attempts == 0:
                waiting[parent_id] = (chain[-1].depth + 1, chain[-1].first_position)
            done += len(chain)
            self._report(done, done + len(waiting), chain[-1].depth)
        return Outcome.REFOLDED if done else Outcome.NOTHING_TO_FOLD

    async def _chain(self, old: SummaryRecord) -> list[SummaryRecord]:
        """The summary made again, and those above it that must change with it to stay smaller than their children;
        none where the model is out of reach."""
        made = await self._remade(old)
        if made is None:
            return []
        chain = [made]
        while made.parent_id is not None and made.refold_attempts == 0:
            parent = await self._store.get_summary(made.parent_id)
            children = [
                made if child.id == made.id else child for child in await self._store.get_child_summaries(parent.id)
            ]
            tokens = sum(child.token_count for child in children)
            if parent.token_count < tokens:
                break
            parent = replace(parent, source_token_count=tokens)
            made = self._replaced(parent, await self._run.summarize_summaries(children))
            chain.append(made)
        return chain

    async def _remade(self, old: SummaryRecord) -> SummaryRecord | None:
        """`old` with a new text, or, where the model has none that is better, with one more attempt counted; None where
        no model answered."""
        if old.depth == 0:
            turns = await self._store.get_source_turns(old.id)
            made = await self._run.summarize_turns(turns, await self._text_before(old))
        else:
            made = await self._run.summarize_summaries(await self._store.get_child_summaries(old.id))
        if not made.was_answered:
            return None
        if made.tier == "fallback" or (made.token_count > old.token_count and not self._may_grow):
            return replace(old, refold_attempts=old.refold_attempts + 1)
        return self._replaced(old, made)

    async def _text_before(self, leaf: SummaryRecord) -> str:
        before = await self._store.get_newest_leaf(leaf.session_id, before_position=leaf.first_position)
        return before.content if before else ""

    def _replaced(self, old: SummaryRecord, made: Made) -> SummaryRecord:
        return replace(old, **made.facts(), created_at=datetime.now(UTC), is_outdated=False, refold_attempts=0)

    def _report(self, done: int, to_do: int, depth: int) -> None:
        if self._on_progress is not None:
            self._on_progress(RefoldProgress(summaries_done=done, summaries_to_do=to_do, depth=depth))

    def _count(self, chain: Sequence[SummaryRecord]) -> None:
        for made in chain:
            if made.refold_attempts:
                self.stats["summaries_kept"] += 1
            else:
                self.stats["summaries_refolded"] += 1
                self.stats["tiers_used"].append(made.tier)


def no_refolds() -> RefoldStats:
    return RefoldStats(summaries_refolded=0, summaries_kept=0, tiers_used=[])


def check_stale(stale: object) -> None:
    """Raises `InvalidArgument` unless `stale` names what makes a summary stale."""
    names = set(get_args(Reason))
    if isinstance(stale, str) or not isinstance(stale, Collection) or not stale or not set(stale) <= names:
        raise InvalidArgument(f"stale must be one or more of {', '.join(sorted(names))}, not {stale!r}")
