"""Who works on a session: a worker, and its run, which lasts as long as it holds the session's lease.

Every call to the store is a transaction of its own, so that no connection is open while the summarizer works.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from turnfold.errors import CompactionInProgress, TurnfoldError
from turnfold.outcomes import Outcome, log, outcome_of
from turnfold.planning import Bounds
from turnfold.records import MADE_FIELDS, Lease, Progress, SummaryRecord, Tier, Turn
from turnfold.repository import AsyncRepository
from turnfold.summarizer import FALLBACK_MODEL, AsyncSummarizerProtocol

__all__ = ["Made", "OnOutcome", "OnProgress", "Run", "Worker"]

OnProgress = Callable[[Progress], None]
OnOutcome = Callable[[Outcome], None]

LEASE_SECONDS = 600.0
"""How long a lease lasts: longer than a model may take for one call, and what a dead worker blocks."""

SHARE_BEFORE_RENEWAL = 0.05
"""A lease is renewed before a call of the model once so much of it has passed: not for calls that follow quickly."""

POLL_SECONDS = 0.5
"""How often a caller that waits asks for the lease."""


@dataclass(frozen=True)
class Worker:
    """Who works: with which store and summarizer, and, handed in like these, how it sleeps, what keeps the release of
    the lease from being cancelled, and how long the lease lasts."""

    store: AsyncRepository
    summarizer: AsyncSummarizerProtocol
    sleep: Callable[[float], Awaitable[None]]
    shield: Callable[[Awaitable[None]], Awaitable[None]] = lambda work: work
    bounds: Bounds = Bounds()  # noqa: RUF009
    on_progress: OnProgress | None = None
    on_outcome: OnOutcome | None = None
    lease_seconds: float = LEASE_SECONDS
    clock: Callable[[], float] = time.monotonic

    async def hold(
        self, session_id: str, work: Callable[[Run], Awaitable[Outcome]], *, wait_seconds: float = 0.0
    ) -> None:
        """Do `work` under the lease of the session, where it has a turn, and tell how that ended."""
        lease = await self._acquire(session_id, wait_seconds)
        if lease is None:
            self.tell(session_id, Outcome.NOTHING_TO_FOLD)
            return
        run = Run(self, session_id, lease)
        try:
            outcome = await work(run)
        except BaseException as error:
            with suppress(TurnfoldError):
                await self.shield(self.store.release_lease(run.lease))
            if isinstance(error, Exception):
                self.tell(session_id, outcome_of(error), str(error))
            raise
        await self.shield(self.store.release_lease(run.lease))
        self.tell(session_id, outcome)

    def tell(self, session_id: str, outcome: Outcome, reason: str = "") -> None:
        log.log(outcome.level, "session %r: %s%s", session_id, outcome, reason and f": {reason}")
        if self.on_outcome is not None:
            self.on_outcome(outcome)

    async def _acquire(self, session_id: str, wait_seconds: float) -> Lease | None:
        """The lease, or None for a session without turns."""
        owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        while True:
            lease = await self.store.acquire_lease(session_id, owner=owner, seconds=self.lease_seconds)
            session = await self.store.get_session(session_id) if lease is None else None
            if lease is not None or session is None:
                return lease
            if wait_seconds <= 0:
                self.tell(session_id, Outcome.IN_PROGRESS)
                raise CompactionInProgress(
                    f"session {session_id!r} is being compacted by {session.lease_owner}, until "
                    f"{session.lease_expires_at} at the longest; call again later, give wait_seconds, or use "
                    "compact_if_needed, which lets the other work"
                )
            pause = min(wait_seconds, POLL_SECONDS)
            await self.sleep(pause)
            wait_seconds -= pause


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What a summarizer decides of a summary's record, and whether a model answered at all."""

    content: str
    token_count: int
    counter: str
    tier: Tier
    model: str
    prompt_version: str
    input_tokens: int | None
    output_tokens: int | None
    was_answered: bool

    def facts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in MADE_FIELDS}


class Run:
    """One worker's time with one session, from its lease on."""

    def __init__(self, worker: Worker, session_id: str, lease: Lease) -> None:
        self.worker = worker
        self.store = worker.store
        self.session_id = session_id
        self.lease = lease
        self._calls = 0
        self._started = self._renewed = worker.clock()
        takes_hook = getattr(worker.summarizer, "takes_before_call", False)
        self._hook: dict[str, Any] = {"before_call": self._renew_lease} if takes_hook else {}

    @property
    def bound_reached(self) -> Outcome | None:
        """The bound at which no new summary is begun."""
        bounds = self.worker.bounds
        if bounds.max_model_calls is not None and self._calls >= bounds.max_model_calls:
            return Outcome.MAX_MODEL_CALLS
        if bounds.deadline is not None and self.worker.clock() - self._started >= bounds.deadline:
            return Outcome.DEADLINE
        return None

    async def summarize_turns(self, turns: Sequence[Turn], prior_summary: str) -> Made:
        await self._renew_lease_for_others()
        return self._made(
            await self.worker.summarizer.summarize_turns(turns, prior_summary=prior_summary, **self._hook)
        )

    async def summarize_summaries(self, summaries: Sequence[SummaryRecord]) -> Made:
        await self._renew_lease_for_others()
        return self._made(await self.worker.summarizer.summarize_summaries(summaries, **self._hook))

    def _made(self, result: Any) -> Made:
        text, tier = result
        model = FALLBACK_MODEL if tier == "fallback" else str(getattr(self.worker.summarizer, "model_name", ""))
        return Made(
            content=text,
            token_count=self.store.token_counter.count(text),
            counter=self.store.token_counter.name,
            tier=tier,
            model=model,
            prompt_version=getattr(result, "prompt_version", ""),
            input_tokens=getattr(result, "input_tokens", None),
            output_tokens=getattr(result, "output_tokens", None),
            was_answered=getattr(result, "was_answered", True),
        )

    async def _renew_lease_for_others(self) -> None:
        """Before the work of a summarizer that does not renew before each of its calls."""
        if not self._hook:
            await self._renew_lease()

    async def _renew_lease(self) -> None:
        self._calls += 1
        now = self.worker.clock()
        if now - self._renewed >= self.worker.lease_seconds * SHARE_BEFORE_RENEWAL:
            self.lease = await self.store.renew_lease(self.lease, seconds=self.worker.lease_seconds)
            self._renewed = now
