"""Fits summaries and turns into a number of tokens, and makes messages of what is left. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any

from turnfold.budget import TokenBudget
from turnfold.content import answered_ids, call_ids, readable_calls, readable_text
from turnfold.errors import InvalidArgument
from turnfold.planning import cuts
from turnfold.records import SummaryRecord, Turn
from turnfold.tokens import MESSAGE_OVERHEAD_TOKENS, TokenCounter, count_turn
from turnfold.transcript import mark_for

__all__ = ["Fitting", "LeftOut", "summary_message"]

STEPS = 4
"""What gives way does so in steps of one part in so many of the room, so that it seldom does."""

SHORTEST_TURN_TOKENS = 64
"""No turn is shortened to less."""

NO_ANSWER_YET = "[no answer yet]"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A summary or turn that did not fit into the context; it stays in the store under its id."""

    id: str
    tokens: int


class Fitting:
    """Leaves out what does not fit, in order of what can best be spared, and makes messages of the rest."""

    def __init__(
        self,
        summaries: Sequence[SummaryRecord],
        turns: Sequence[Turn],
        budget: TokenBudget,
        room: int,
        counter: TokenCounter,
    ) -> None:
        self.summaries = list(summaries)
        self.turns = list(turns)
        self.left_out: list[LeftOut] = []
        self.shortened: list[str] = []
        self._budget = budget
        self._limits = budget.limits()
        self._room = room
        self._counter = counter
        self._last_position = self.turns[-1].position if self.turns else 0
        self._as_text: set[int] = set()
        self._stand_ins: dict[int, list[dict[str, Any]]] = {}
        self._behind: dict[int, int] = {}
        self._pair()
        self._costs = {turn.position: self._cost(turn) for turn in self.turns}
        self._told = {summary.id: summary_message(summary) for summary in self.summaries}
        self._summary_costs = {
            id: counter.count(message["content"]) + MESSAGE_OVERHEAD_TOKENS for id, message in self._told.items()
        }
        self.tokens = sum(self._summary_costs.values()) + sum(self._costs.values())

    def fit(self) -> None:
        """Raises `InvalidArgument` where even the pinned turns and the fresh tail, shortened, take too much."""
        self._leave_out()
        self._shorten()
        if self.tokens > self._room:
            raise InvalidArgument(
                f"there is room for {self._room:,} tokens (of a total of {self._budget.total:,}), but the pinned turns "
                f"and the fresh tail take {self.tokens:,}; raise total, lower fresh_tail_count "
                f"({self._budget.fresh_tail_count}), or set fresh_tail_tokens"
            )

    def messages(self, *, before_last: Sequence[dict[str, Any]] = ()) -> list[dict[str, Any]]:
        """The messages in order; `before_last` come before the last group."""
        placed: list[tuple[int, int, dict[str, Any]]] = [
            (summary.first_position, 0, self._told[summary.id]) for summary in self.summaries
        ]
        behind = self._behind
        for turn in self.turns:
            place = behind.get(turn.position, turn.position)
            placed.append((place, turn.position, self._message(turn)))
            placed += [(place, self._last_position + 1, message) for message in self._stand_ins.get(turn.position, ())]
        placed.sort(key=lambda item: item[:2])
        if before_last and self.turns:
            last_group = max(behind.get(turn.position, turn.position) for turn in self.turns)
            index = next(i for i, (place, _, _) in enumerate(placed) if place == last_group)
            placed[index:index] = [(last_group, 0, message) for message in before_last]
        return [message for _, _, message in placed]

    def _pair(self) -> None:
        """Find for each answer its call, the nearest before it, and what stands alone: providers refuse the one without
        the other."""
        calls: dict[str, Turn] = {}
        answers: dict[int, set[int]] = {}
        answered: set[tuple[int, str]] = set()
        for turn in self.turns:
            pairs = {(calls[id].position, id) for id in answered_ids(turn) if id in calls}
            is_near = all(turn.position - position <= self._limits.answer_window for position, _ in pairs)
            if len(pairs) < len(answered_ids(turn)) or not is_near or pairs & answered:
                self._as_text.add(turn.position)
            else:
                answered |= pairs
                for position, _ in pairs:
                    answers.setdefault(position, set()).add(turn.position)
            calls.update(dict.fromkeys(call_ids(turn), turn))
        oldest_waiting = self._last_position - self._limits.pending_window
        goes_on_after = max((turn.position for turn in self.turns if not answered_ids(turn)), default=0)
        for turn in self.turns:
            missing = [id for id in call_ids(turn) if (turn.position, id) not in answered]
            if missing and turn.position <= oldest_waiting:
                self._as_text |= {turn.position, *answers.get(turn.position, ())}
            elif missing and turn.position < goes_on_after:
                self._stand_ins[turn.position] = _stand_ins(turn, missing)
        for call_position, positions in answers.items():
            self._behind |= dict.fromkeys(positions - self._as_text, call_position)

    def _message(self, turn: Turn) -> dict[str, Any]:
        return _as_text(turn) if turn.position in self._as_text else turn.to_message()

    def _cost(self, turn: Turn) -> int:
        if turn.position in self._as_text:
            return self._message_cost(_as_text(turn))
        return turn.token_count + sum(map(self._message_cost, self._stand_ins.get(turn.position, ())))

    def _message_cost(self, message: dict[str, Any]) -> int:
        return count_turn(self._counter, Turn.from_message(message))

    def _leave_out(self) -> None:
        excess = self.tokens - self._room
        if excess <= 0:
            return
        step = max(1, self._room // STEPS)
        target = -(-excess // step) * step
        gone = 0
        while self.summaries and gone < target:
            summary = self.summaries.pop(0)
            gone += self._drop(summary.id, self._summary_costs[summary.id])
        dropped: set[int] = set()
        for group in self._groups_before_tail():
            if gone >= target:
                break
            for turn in group:
                gone += self._drop(str(turn.id), self._costs[turn.position])
                dropped.add(turn.position)
        self.turns = [turn for turn in self.turns if turn.position not in dropped]

    def _groups_before_tail(self) -> list[list[Turn]]:
        free = [turn for turn in self.turns if not turn.pinned]
        ends = cuts(free, self._limits)
        groups = [free[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        tail = self._last_position - self._limits.fresh_tail_count
        before = [group for group in groups if group[-1].position <= tail]
        within = groups[len(before) :]
        cap = self._budget.fresh_tail_tokens
        while cap is not None and len(within) > 1 and self._tokens_of(within) > cap:
            before.append(within.pop(0))
        return before

    def _tokens_of(self, groups: Sequence[Sequence[Turn]]) -> int:
        return sum(self._costs[turn.position] for group in groups for turn in group)

    def _drop(self, id: str, tokens: int) -> int:
        self.left_out.append(LeftOut(id, tokens))
        self.tokens -= tokens
        return tokens

    def _shorten(self) -> None:
        """Shorten the longest texts, all to the same power of two, so that they seldom change."""
        longest = max((turn.token_count for turn in self.turns if _can_be_shortened(turn)), default=0)
        most = 1 << max(0, longest - 1).bit_length()
        originals, costs = list(self.turns), dict(self._costs)
        while self.tokens > self._room and most > SHORTEST_TURN_TOKENS:
            most //= 2
            self.turns, self._costs, self.shortened = list(originals), dict(costs), []
            for index, turn in enumerate(originals):
                if _can_be_shortened(turn) and turn.token_count > most:
                    self.turns[index] = shorter = self._shorter(turn, most)
                    self._costs[turn.position] += shorter.token_count - turn.token_count
                    self.shortened.append(str(turn.id))
            kept = sum(self._summary_costs[summary.id] for summary in self.summaries)
            self.tokens = kept + sum(self._costs[turn.position] for turn in self.turns)

    def _shorter(self, turn: Turn, most: int) -> Turn:
        note = f"\n[shortened; the whole text is turn {turn.id}, position {turn.position}]"
        text = str(turn.content)
        keep = len(text) * most // max(1, turn.token_count)
        while True:
            content = text[: keep // 2] + " … " + text[len(text) - keep // 2 :] + note
            shorter = replace(turn, content=content, payload=None)
            shorter = replace(shorter, token_count=count_turn(self._counter, shorter))
            if shorter.token_count <= most or keep < 8:
                return shorter
            keep = keep * 3 // 4


def summary_message(summary: SummaryRecord) -> dict[str, Any]:
    """A summary as a message: no system message, because an old turn must not gain authority by being summarized."""
    mark = mark_for("summary", summary.content)
    start, end = summary.time_range_start.astimezone(UTC), summary.time_range_end.astimezone(UTC)
    until = f"{end:%H:%M}" if start.date() == end.date() else f"{end:%Y-%m-%d %H:%M}"
    head = (
        f'<{mark} id="{summary.id}" depth="{summary.depth}" turns="{summary.first_position}-{summary.last_position}" '
        f'count="{summary.descendant_count}" time="{start:%Y-%m-%d %H:%M} to {until} UTC">'
    )
    return {"role": "user", "content": f"{head}\n{summary.content}\n</{mark}>"}


def _can_be_shortened(turn: Turn) -> bool:
    return isinstance(turn.content, str) and not turn.pinned


def _stand_ins(call: Turn, ids: Sequence[str]) -> list[dict[str, Any]]:
    if call.tool_calls:
        return [{"role": "tool", "tool_call_id": id, "content": NO_ANSWER_YET} for id in ids]
    parts = [{"type": "tool_result", "tool_use_id": id, "content": NO_ANSWER_YET} for id in ids]
    return [{"role": "user", "content": parts}]


def _as_text(turn: Turn) -> dict[str, Any]:
    """A tool call or a result that stands alone, as words."""
    lines = [readable_text(turn.content)]
    lines += [f"[called {name} {arguments}; no answer came]" for name, arguments in readable_calls(turn)]
    text = "\n".join(filter(None, lines))
    if answered_ids(turn):
        text = f"[late result of tool call {', '.join(answered_ids(turn))} {turn.name or ''}]\n{text}"
    return {"role": "assistant" if turn.role == "assistant" else "user", "content": text}
