"""The context that a model sees: what stands for the whole session in as many tokens as the budget has.

Pinned turns and the fresh tail are always in it. Where the rest is too much, the oldest summaries give way first, then
the oldest uncovered groups, and `Context.left_out` names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from hashlib import blake2b
from typing import Any

from turnfold.content import answered_ids, call_ids, readable_calls, readable_text
from turnfold.drive import drive, immediately
from turnfold.errors import InvalidArgument
from turnfold.planning import Limits, check_count, check_threshold, cuts
from turnfold.records import SummaryRecord, Turn, check_session_id
from turnfold.repository import AsyncRepository, Repository
from turnfold.tokens import MESSAGE_OVERHEAD_TOKENS, TokenCounter, count_turn

__all__ = ["Context", "LeftOut", "TokenBudget", "assemble_context"]


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """How many tokens the context may take, and how it is kept within them.

    `total` tokens at most; `context_threshold` is the share of it above which `compact_if_needed` compacts; the rest
    are the limits of `compact_session`. Raises `InvalidArgument`, by name, for a value out of range.
    """

    total: int
    context_threshold: float = 0.75
    fresh_tail_count: int = 16
    leaf_chunk_tokens: int = 20_000
    condensed_min_fanout: int = 4

    def __post_init__(self) -> None:
        check_count("total", self.total, at_least=1)
        check_threshold("context_threshold", self.context_threshold)
        self.limits()

    def limits(self) -> Limits:
        return Limits(
            fresh_tail_count=self.fresh_tail_count,
            leaf_chunk_tokens=self.leaf_chunk_tokens,
            condensed_min_fanout=self.condensed_min_fanout,
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A summary or turn that did not fit into the context; it stays in the store under its id."""

    id: str
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """`messages` in OpenAI's chat form, in order, of `token_count` tokens: `summaries` and `turns` of the store.
    `left_out` did not fit; `shortened` are ids of turns of which only a part did."""

    messages: list[dict[str, Any]]
    token_count: int
    summaries: list[SummaryRecord]
    turns: list[Turn]
    left_out: list[LeftOut]
    shortened: list[str]


def assemble_context(session_id: str, memory_store: Repository, budget: TokenBudget) -> Context:
    """The context of a session within `budget.total` tokens, as the store counts them.

    Messages come out as they came in, but for tool results whose call was folded and calls that were abandoned: these
    stand as text, which every provider accepts. A session without turns gives an empty context.

    Raises `InvalidArgument` where the budget cannot hold the pinned turns and the fresh tail even with their longest
    texts shortened.
    """
    return drive(assemble(session_id, immediately(memory_store), budget))


async def assemble(session_id: str, store: AsyncRepository, budget: TokenBudget) -> Context:
    check_session_id(session_id)
    # Summaries first: they alone say what is covered, so that a leaf written between the reads hides no turn.
    summaries = await store.get_uncompacted_summaries(session_id)
    covered = max((summary.last_position for summary in summaries), default=0)
    pinned = await store.get_pinned_turns(session_id, up_to_position=covered) if covered else []
    turns = await store.get_session_turns(session_id, after_position=covered)
    return _Fitting(summaries, pinned, turns, budget, store.token_counter).context()


class _Fitting:
    """Leaves out what does not fit, in order of what can best be spared, and makes messages of the rest."""

    def __init__(
        self,
        summaries: Sequence[SummaryRecord],
        pinned: Sequence[Turn],
        uncovered: Sequence[Turn],
        budget: TokenBudget,
        counter: TokenCounter,
    ) -> None:
        self._budget = budget
        self._counter = counter
        self._messages = {summary.id: summary_message(summary) for summary in summaries}
        self._summaries = list(summaries)
        self._uncovered = list(uncovered)
        self._turns = [*pinned, *uncovered]
        self._last_position = self._turns[-1].position if self._turns else 0
        self._left_out: list[LeftOut] = []
        self._shortened: list[str] = []
        self._tokens = sum(map(self._cost, self._summaries)) + sum(turn.token_count for turn in self._turns)

    def context(self) -> Context:
        self._leave_out_summaries()
        self._leave_out_groups()
        self._shorten_turns()
        if self._excess > 0:
            raise InvalidArgument(
                f"total is {self._budget.total:,} tokens, but the pinned turns and the fresh tail take "
                f"{self._tokens:,}; raise total, or lower fresh_tail_count ({self._budget.fresh_tail_count})"
            )
        return Context(
            messages=self._ordered_messages(),
            token_count=self._tokens,
            summaries=self._summaries,
            turns=self._turns,
            left_out=self._left_out,
            shortened=self._shortened,
        )

    @property
    def _excess(self) -> int:
        return self._tokens - self._budget.total

    def _cost(self, summary: SummaryRecord) -> int:
        return self._counter.count(self._messages[summary.id]["content"]) + MESSAGE_OVERHEAD_TOKENS

    def _leave_out_summaries(self) -> None:
        while self._summaries and self._excess > 0:
            summary = self._summaries.pop(0)
            self._leave_out(summary.id, self._cost(summary))

    def _leave_out_groups(self) -> None:
        limits = self._budget.limits()
        gone: set[int] = set()
        start = 0
        for end in cuts(self._uncovered, limits):
            if self._excess <= 0 or self._uncovered[end - 1].position > self._last_position - limits.fresh_tail_count:
                break
            for turn in self._uncovered[start:end]:
                if not turn.pinned:
                    gone.add(turn.position)
                    self._leave_out(str(turn.id), turn.token_count)
            start = end
        self._turns = [turn for turn in self._turns if turn.position not in gone]

    def _leave_out(self, id: str, tokens: int) -> None:
        self._left_out.append(LeftOut(id, tokens))
        self._tokens -= tokens

    def _shorten_turns(self) -> None:
        for turn in sorted(self._turns, key=lambda turn: -turn.token_count):
            if self._excess <= 0:
                return
            if isinstance(turn.content, str) and not turn.pinned:
                self._shorten(turn)

    def _shorten(self, turn: Turn) -> None:
        note = f"\n[shortened; the whole text is turn {turn.id}]"
        text = str(turn.content)
        keep = len(text)
        while keep > 80:
            keep = keep * 3 // 4
            content = text[: keep // 2] + " … " + text[len(text) - keep // 2 :] + note
            shorter = replace(turn, content=content, payload=None)
            shorter = replace(shorter, token_count=count_turn(self._counter, shorter))
            if turn.token_count - shorter.token_count >= self._excess:
                break
        else:
            return
        self._turns[self._turns.index(turn)] = shorter
        self._tokens += shorter.token_count - turn.token_count
        self._shortened.append(str(turn.id))

    def _ordered_messages(self) -> list[dict[str, Any]]:
        placed = [(summary.first_position, self._messages[summary.id]) for summary in self._summaries]
        asked: set[str] = set()
        answered = {id for turn in self._turns for id in answered_ids(turn)}
        for turn in self._turns:
            is_late = not asked.issuperset(answered_ids(turn))
            is_abandoned = not answered.issuperset(call_ids(turn)) and not self._may_still_be_answered(turn)
            placed.append((turn.position, _as_text(turn) if is_late or is_abandoned else turn.to_message()))
            asked.update(call_ids(turn))
        return [message for _, message in sorted(placed, key=lambda pair: pair[0])]

    def _may_still_be_answered(self, turn: Turn) -> bool:
        return turn.position > self._last_position - self._budget.limits().pending_window


def summary_message(summary: SummaryRecord) -> dict[str, Any]:
    """A summary as a message. Its mark comes from the digest of its text, which no text can contain; it is no system
    message, because an old turn must not gain authority by being summarized."""
    mark = f"summary-{blake2b(summary.content.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"
    start, end = summary.time_range_start.astimezone(UTC), summary.time_range_end.astimezone(UTC)
    until = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%Y-%m-%d %H:%M}"
    head = (
        f'<{mark} id="{summary.id}" depth="{summary.depth}" turns="{summary.first_position}-{summary.last_position}" '
        f'count="{summary.descendant_count}" time="{start:%Y-%m-%d %H:%M} to {until} UTC">'
    )
    return {"role": "user", "content": f"{head}\n{summary.content}\n</{mark}>"}


def _as_text(turn: Turn) -> dict[str, Any]:
    """A tool call or a result that stands alone, as words: providers refuse the one without the other."""
    lines = [readable_text(turn.content)]
    lines += [f"[called {name} {arguments}; no answer came]" for name, arguments in readable_calls(turn)]
    text = "\n".join(filter(None, lines))
    if answered_ids(turn):
        text = f"[late result of tool call {', '.join(answered_ids(turn))} {turn.name or ''}]\n{text}"
    return {"role": "assistant" if turn.role == "assistant" else "user", "content": text}
