"""The async twins of turnfold's functions, under the same names: `from turnfold.aio import compact_if_needed`.

Only who waits differs. The algorithm is the one core that the synchronous functions drive; the store runs the same
operations through `AsyncSession.run_sync`; no thread is started. Cancelling a task at any await leaves a good store,
and frees the lease.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

try:
    import greenlet  # noqa: F401  (SQLAlchemy 2.0 notices its absence only at the first query)

    from turnfold.sql.aio import AsyncSqlRepository, migrate
except ImportError as error:
    from turnfold.errors import MissingExtra

    raise MissingExtra(f"turnfold.aio needs SQLAlchemy's asyncio ({error})", extra="async") from None

from turnfold.checking import Fault, OnCheckProgress, erase, find_faults, mend
from turnfold.context import Context, TokenBudget, assemble
from turnfold.core import compact, fitted, is_over, refold, run_if_needed
from turnfold.drive import eventual, eventually
from turnfold.embedding import BATCH_SIZE, EmbedStats, OnEmbedProgress, embed_missing
from turnfold.errors import InvalidArgument
from turnfold.folding import Always
from turnfold.planning import CONDENSED_TARGET_TOKENS, LEAF_TARGET_TOKENS, Bounds, Limits
from turnfold.recall import Description, Expansion, Hit, SearchIn, described, expanded, find, surrounding
from turnfold.records import CompactionStats, RefoldStats, SummaryRecord, Turn
from turnfold.refolding import FALLBACKS, OnRefoldProgress, Stale
from turnfold.repository import AsyncRepository
from turnfold.running import OnOutcome, OnProgress, Worker
from turnfold.summarizer import (
    AsyncSummarizerProtocol,
    BeforeCall,
    Summarized,
    SummarizerCore,
    SummarizerProtocol,
)
from turnfold.summarizer import Summarizer as SyncSummarizer
from turnfold.tools import Scope, answer

__all__ = [
    "AsyncSqlRepository",
    "Summarizer",
    "TokenBudget",
    "Turn",
    "around",
    "assemble_context",
    "call_tool",
    "check",
    "compact_if_needed",
    "compact_session",
    "describe",
    "embed_session",
    "erase_session",
    "expand",
    "migrate",
    "refold_session",
    "repair",
    "search",
    "should_compact",
]


class Summarizer(SummarizerCore):
    """`turnfold.Summarizer`, awaitable. `model` is any callable `prompt -> text`, asynchronous or not; one that is not
    holds up the event loop while it answers."""

    def _awaitable(self, model: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
        return eventual(getattr(model, "acall", model))

    async def summarize_turns(
        self,
        turns: Sequence[Turn],
        prior_summary: str = "",
        *,
        target_tokens: int = LEAF_TARGET_TOKENS,
        before_call: BeforeCall | None = None,
    ) -> Summarized:
        return await self._summarize_turns(turns, prior_summary, target_tokens, before_call)

    async def summarize_summaries(
        self,
        summaries: Sequence[SummaryRecord],
        *,
        target_tokens: int = CONDENSED_TARGET_TOKENS,
        before_call: BeforeCall | None = None,
    ) -> Summarized:
        return await self._summarize_summaries(summaries, target_tokens, before_call)


async def compact_session(
    session_id: str,
    memory_store: AsyncRepository,
    summarizer: AsyncSummarizerProtocol | SummarizerProtocol,
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
    """`turnfold.compact_session`, awaitable."""
    limits = Limits(
        fresh_tail_count=fresh_tail_count,
        leaf_chunk_tokens=leaf_chunk_tokens,
        condensed_min_fanout=condensed_min_fanout,
        max_condense_depth=max_condense_depth,
    )
    bounds = Bounds(max_model_calls=max_model_calls, deadline=deadline)
    worker = _worker(memory_store, summarizer, bounds, on_progress, on_outcome)
    return await compact(session_id, worker, limits, Always(), wait_seconds=wait_seconds)


async def should_compact(
    session_id: str,
    memory_store: AsyncRepository,
    token_budget: int,
    threshold: float = 0.75,
    *,
    reported_tokens: int = 0,
) -> bool:
    """`turnfold.should_compact`, awaitable."""
    return await is_over(session_id, _checked(memory_store), token_budget, threshold, reported_tokens)


async def compact_if_needed(
    session_id: str,
    memory_store: AsyncRepository,
    summarizer: AsyncSummarizerProtocol | SummarizerProtocol,
    budget: Any,
    *,
    reported_tokens: int = 0,
    max_model_calls: int | None = None,
    deadline: float | None = None,
    on_progress: OnProgress | None = None,
    on_outcome: OnOutcome | None = None,
) -> CompactionStats | None:
    """`turnfold.compact_if_needed`, awaitable."""
    bounds = Bounds(max_model_calls=max_model_calls, deadline=deadline)
    worker = _worker(memory_store, summarizer, bounds, on_progress, on_outcome)
    return await run_if_needed(session_id, worker, budget, reported_tokens)


async def refold_session(
    session_id: str,
    memory_store: AsyncRepository,
    summarizer: AsyncSummarizerProtocol | SummarizerProtocol,
    *,
    stale: Stale = FALLBACKS,
    wait_seconds: float = 0.0,
    max_model_calls: int | None = None,
    deadline: float | None = None,
    on_progress: OnRefoldProgress | None = None,
    on_outcome: OnOutcome | None = None,
) -> RefoldStats:
    """`turnfold.refold_session`, awaitable."""
    bounds = Bounds(max_model_calls=max_model_calls, deadline=deadline)
    worker = _worker(memory_store, summarizer, bounds, None, on_outcome)
    return await refold(session_id, worker, stale, on_progress, wait_seconds=wait_seconds)


async def assemble_context(
    session_id: str,
    memory_store: AsyncRepository,
    budget: TokenBudget,
    *,
    system: str | None = None,
    query: str | None = None,
) -> Context:
    """`turnfold.assemble_context`, awaitable."""
    return await assemble(session_id, _checked(memory_store), budget, system, query)


async def search(
    session_id: str | None,
    memory_store: AsyncRepository,
    query: str,
    *,
    limit: int = 10,
    in_: SearchIn = "turns",
    session_prefix: str = "",
) -> list[Hit]:
    """`turnfold.search`, awaitable."""
    return await find(session_id, _checked(memory_store), query, limit, in_, session_prefix)


async def embed_session(
    session_id: str,
    memory_store: AsyncRepository,
    *,
    batch_size: int = BATCH_SIZE,
    on_progress: OnEmbedProgress | None = None,
) -> EmbedStats:
    """`turnfold.embed_session`, awaitable; the embedder may be asynchronous."""
    return await embed_missing(session_id, _checked(memory_store), batch_size, on_progress)


async def describe(summary_id: str, memory_store: AsyncRepository) -> Description:
    """`turnfold.describe`, awaitable."""
    return await described(summary_id, _checked(memory_store))


async def expand(
    summary_id: str, memory_store: AsyncRepository, *, max_tokens: int | None = None, after_position: int = 0
) -> Expansion:
    """`turnfold.expand`, awaitable."""
    return await expanded(summary_id, _checked(memory_store), max_tokens, after_position)


async def around(session_id: str, memory_store: AsyncRepository, position: int, n: int = 3) -> list[Turn]:
    """`turnfold.around`, awaitable."""
    return await surrounding(session_id, _checked(memory_store), position, n)


async def call_tool(name: str, arguments: Mapping[str, Any], memory_store: AsyncRepository, scope: Scope) -> str:
    """`turnfold.tools.call_tool`, awaitable."""
    return await answer(name, arguments, _checked(memory_store), scope)


async def check(
    memory_store: AsyncRepository, session_id: str | None = None, *, on_progress: OnCheckProgress | None = None
) -> list[Fault]:
    """`turnfold.check`, awaitable."""
    return await find_faults(_checked(memory_store), session_id, on_progress)


async def repair(
    memory_store: AsyncRepository, session_id: str | None = None, *, on_progress: OnCheckProgress | None = None
) -> list[Fault]:
    """`turnfold.repair`, awaitable."""
    return await mend(_checked(memory_store), session_id, on_progress)


async def erase_session(session_id: str, memory_store: AsyncRepository) -> bool:
    """`turnfold.erase_session`, awaitable."""
    return await erase(session_id, _checked(memory_store))


def _worker(
    memory_store: AsyncRepository,
    summarizer: AsyncSummarizerProtocol | SummarizerProtocol,
    bounds: Bounds,
    on_progress: OnProgress | None,
    on_outcome: OnOutcome | None,
) -> Worker:
    return Worker(
        _checked(memory_store),
        _asynchronous(fitted(summarizer, memory_store)),
        sleep=asyncio.sleep,
        shield=asyncio.shield,
        bounds=bounds,
        on_progress=on_progress,
        on_outcome=on_outcome,
    )


def _checked(memory_store: AsyncRepository) -> AsyncRepository:
    if not inspect.iscoroutinefunction(memory_store.get_session):
        raise InvalidArgument(
            f"{type(memory_store).__name__} is synchronous; hand turnfold.aio an AsyncSqlRepository, "
            "or use the functions of turnfold"
        )
    return memory_store


def _asynchronous(summarizer: Any) -> AsyncSummarizerProtocol:
    """A summarizer for this side: a synchronous one of ours as its twin, one of others as it is."""
    if isinstance(summarizer, SyncSummarizer):
        twin = Summarizer(
            summarizer.model,
            token_counter=summarizer.given_counter,
            max_input_tokens=summarizer.max_input_tokens,
            fallback_on_failure=summarizer.fallback_on_failure,
            prompts=summarizer.prompts,
        )
        twin._counter = summarizer._counter
        return twin
    if inspect.iscoroutinefunction(summarizer.summarize_turns):
        return cast(AsyncSummarizerProtocol, summarizer)
    return cast(AsyncSummarizerProtocol, eventually(summarizer))
