"""Decides what to fold; reads nothing, writes nothing, knows no database and no clock.

A *cut* is a place between two turns that no group lies across. Chunks and the fresh tail begin and end at cuts only,
and that is all that keeps a tool call and its answers together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from turnfold.content import answered_ids, call_ids
from turnfold.errors import InvalidArgument
from turnfold.records import SummaryRecord, Turn

__all__ = [
    "Bounds",
    "Chunk",
    "Limits",
    "batches_to_condense",
    "check_count",
    "check_threshold",
    "cuts",
    "next_chunk",
    "smallest_chunk_worth_a_call",
]

LEAF_TARGET_TOKENS = 1_200
CONDENSED_TARGET_TOKENS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a compaction keeps, and how much it folds at once (defaults of the Missy assistant's compaction).

    Raises `InvalidArgument`, by name, for a value out of range.
    """

    fresh_tail_count: int = 16
    leaf_chunk_tokens: int = 20_000
    condensed_min_fanout: int = 4
    max_condense_depth: int | None = None
    fresh_tail_tokens: int | None = None
    within_fresh_tail_tokens: int | None = None
    """How many of the newest turns fit into `fresh_tail_tokens`, once that was counted (`counted`)."""

    def __post_init__(self) -> None:
        check_count("fresh_tail_count", self.fresh_tail_count, at_least=0)
        check_count("leaf_chunk_tokens", self.leaf_chunk_tokens, at_least=1)
        check_count("condensed_min_fanout", self.condensed_min_fanout, at_least=2)
        if self.fresh_tail_tokens is not None:
            check_count("fresh_tail_tokens", self.fresh_tail_tokens, at_least=1)
        if self.max_condense_depth is not None:
            check_count("max_condense_depth", self.max_condense_depth, at_least=-1)

    def counted(self, newest: Sequence[Turn]) -> Limits:
        """These limits, where the newest turns are known: the cap leaves one of them in the fresh tail at the least."""
        tokens = accumulate(turn.token_count for turn in reversed(newest))
        fitting = sum(total <= self.fresh_tail_tokens for total in tokens) if self.fresh_tail_tokens else len(newest)
        return replace(self, within_fresh_tail_tokens=max(1, fitting))

    @property
    def tail_count(self) -> int:
        """How many of the newest turns are never folded."""
        most = self.within_fresh_tail_tokens
        return self.fresh_tail_count if most is None else min(self.fresh_tail_count, most)

    def may_condense_from(self, depth: int) -> bool:
        """Whether summaries of `depth` may be condensed; None and -1 set no bound."""
        return self.max_condense_depth is None or self.max_condense_depth == -1 or depth <= self.max_condense_depth

    @property
    def pending_window(self) -> int:
        """A call without its answer holds back folding while it is this near to the end, in turns."""
        return 4 * self.fresh_tail_count

    @property
    def answer_window(self) -> int:
        """An answer further from its call than this, in turns, came after the call was abandoned. With a short
        fresh tail 64 turns, the window of the default one: otherwise a tail of 0 would part every pair."""
        return max(self.pending_window, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """When a run begins no new summary: after `max_model_calls` calls of the model, or after `deadline` seconds.

    A summary that was begun is finished. Raises `InvalidArgument`, by name, for a value out of range.
    """

    max_model_calls: int | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.max_model_calls is not None:
            check_count("max_model_calls", self.max_model_calls, at_least=1)
        if self.deadline is not None and not (isinstance(self.deadline, int | float) and self.deadline > 0):
            raise InvalidArgument(f"deadline must be a number of seconds above 0, not {self.deadline!r}")


class Chunk(NamedTuple):
    """The first `length` of the turns looked at, to be folded into one leaf."""

    length: int
    tokens: int
    is_full: bool
    """Whether more evictable turns follow that would not have fitted in."""
    is_settled: bool
    """Whether no turn that was not looked at could change the chunk."""
    waits_for_answer: bool = False
    """Whether a tool call without its answer holds back turns that could be folded otherwise."""


def next_chunk(turns: Sequence[Turn], limits: Limits, *, last_position: int, is_complete: bool) -> Chunk:
    """The chunk to fold first, of length 0 where nothing may be folded.

    `turns` are the session's first uncovered turns, pinned ones aside; `is_complete` says that no more follow.
    `last_position` is the session's, from which the fresh tail counts.
    """
    enough = _length_looked_at(turns, limits)
    if enough < len(turns):
        chunk = next_chunk(turns[:enough], limits, last_position=last_position, is_complete=False)
        if chunk.is_settled:
            return chunk
    before_tail = _length_before_tail(turns, limits, last_position)
    evictable = _length_before_pending(turns, limits, last_position, before_tail)
    length, tokens, is_full = 0, 0, False
    for cut in cuts(turns, limits):
        if cut > evictable:
            break
        more = sum(turn.token_count for turn in turns[length:cut])
        if length and tokens + more > limits.leaf_chunk_tokens:
            is_full = True
            break
        length, tokens = cut, tokens + more
    looked_past = turns[-1].position - turns[max(length - 1, 0)].position if turns else 0
    is_settled = is_complete or (is_full and looked_past > limits.answer_window)
    return Chunk(length, tokens, is_full, is_settled, waits_for_answer=evictable < before_tail)


def cuts(turns: Sequence[Turn], limits: Limits) -> list[int]:
    """The lengths at which the turns can be cut: no later turn answers a call before the cut."""
    starts = _group_starts(turns, limits)
    found = []
    earliest = len(turns)
    for index in range(len(turns) - 1, -1, -1):
        if earliest > index:
            found.append(index + 1)
        earliest = min(earliest, starts[index])
    return found[::-1]


def smallest_chunk_worth_a_call(limits: Limits, total: int) -> int:
    """The tokens above which a last, partial chunk is folded between the turns of a live conversation: what the
    summary in its place would take, which is less where chunks or the whole budget are small."""
    return min(LEAF_TARGET_TOKENS, limits.leaf_chunk_tokens // 4, total // 10)


def batches_to_condense(
    summaries: Sequence[SummaryRecord], *, min_fanout: int, max_tokens: int
) -> Iterator[Sequence[SummaryRecord]]:
    """The neighbours to put under one parent each, oldest first: all of them where they fit into `max_tokens`, else
    as few batches as do, but of at least `min_fanout`; none where there are fewer than `min_fanout` summaries."""
    if len(summaries) < min_fanout:
        return
    start, tokens = 0, 0
    for index, summary in enumerate(summaries):
        enough = index - start >= min_fanout and len(summaries) - index >= min_fanout
        if enough and tokens + summary.token_count > max_tokens:
            yield summaries[start:index]
            start, tokens = index, 0
        tokens += summary.token_count
    yield summaries[start:]


def check_count(name: str, value: Any, *, at_least: int) -> None:
    """Raises `InvalidArgument` unless `value` is a whole number of at least `at_least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InvalidArgument(f"{name} must be a whole number of {at_least} or more, not {value!r}")


def check_threshold(name: str, value: Any) -> None:
    """Raises `InvalidArgument` unless 0 < `value` <= 1."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= 1:
        raise InvalidArgument(f"{name} must be a share above 0 and up to 1, such as 0.75, not {value!r}")


def _group_starts(turns: Sequence[Turn], limits: Limits) -> list[int]:
    """For each turn the index of the call that it answers, its own where it answers none of these turns."""
    starts = list(range(len(turns)))
    call_at: dict[str, int] = {}
    for index, turn in _with_tools(turns):
        for id in answered_ids(turn):
            call = call_at.get(id)
            if call is not None and turn.position - turns[call].position <= limits.answer_window:
                starts[index] = min(starts[index], call)
        call_at.update(dict.fromkeys(call_ids(turn), index))
    return starts


def _with_tools(turns: Sequence[Turn]) -> list[tuple[int, Turn]]:
    """The turns that may make a call or answer one, with their index: mostly few."""
    return [
        (index, turn)
        for index, turn in enumerate(turns)
        if turn.tool_calls or turn.tool_call_id is not None or isinstance(turn.content, list)
    ]


def _length_looked_at(turns: Sequence[Turn], limits: Limits) -> int:
    """How many turns nearly always settle a chunk: those that fill it, and those that may still answer its calls."""
    tokens = 0
    for index, turn in enumerate(turns):
        tokens += turn.token_count
        if tokens > limits.leaf_chunk_tokens:
            return min(len(turns), index + limits.answer_window + 2)
    return len(turns)


def _length_before_tail(turns: Sequence[Turn], limits: Limits, last_position: int) -> int:
    tail = last_position - limits.tail_count
    return next((index for index, turn in enumerate(turns) if turn.position > tail), len(turns))


def _length_before_pending(turns: Sequence[Turn], limits: Limits, last_position: int, length: int) -> int:
    """How many of the first `length` turns lie before the first call that still waits for its answer."""
    window = last_position - limits.pending_window
    pending = _pending_calls(turns, limits)
    return next((index for index in pending if index < length and turns[index].position > window), length)


def _pending_calls(turns: Sequence[Turn], limits: Limits) -> list[int]:
    waiting: dict[str, int] = {}
    pending = set()
    for index, turn in _with_tools(turns):
        for id in answered_ids(turn):
            waiting.pop(id, None)
        for id in call_ids(turn):
            if id in waiting:
                pending.add(waiting[id])
            waiting[id] = index
    return sorted(pending | set(waiting.values()))
