"""The context that a model sees: what stands for the whole session in as many tokens as the budget has.

Pinned turns and the fresh tail are always in it. Where the rest is too much, the oldest summaries give way first, then
the oldest uncovered groups, and `Context.left_out` names them. What gives way does so in steps of a quarter of the
budget, not turn by turn, so that the beginning of the context stays as it was and the provider's prompt cache with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turnfold.budget import TokenBudget
from turnfold.drive import drive, immediately
from turnfold.errors import InvalidArgument
from turnfold.fitting import Fitting, LeftOut
from turnfold.forms import to_anthropic, to_openai
from turnfold.recall import ranked, understood
from turnfold.records import SummaryRecord, Turn, check_session_id
from turnfold.repository import AsyncRepository, Repository
from turnfold.tokens import MESSAGE_OVERHEAD_TOKENS
from turnfold.transcript import mark_for, transcript

__all__ = ["Context", "LeftOut", "TokenBudget", "assemble_context"]

SHARE_FOR_RECALL = 4
"""At most one part in so many of the budget is given to turns that are recalled for a query."""

MOST_RECALLED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """`messages` as they came in, in order, of `token_count` tokens, which stand for `summaries` (without the ids of
    their sources, which are not read) and `turns`. `left_out` did not fit; `shortened` are ids of turns of which only a
    part did; `recalled` are the turns that were fetched back for the query."""

    messages: list[dict[str, Any]]
    token_count: int
    summaries: list[SummaryRecord]
    turns: list[Turn]
    left_out: list[LeftOut]
    shortened: list[str]
    recalled: list[Turn]

    def openai(self) -> list[dict[str, Any]]:
        """The messages in OpenAI's chat form, whatever form they came in."""
        return to_openai(self.messages)

    def anthropic(self) -> dict[str, Any]:
        """The messages in Anthropic's form, whatever form they came in: `system` and `messages`, as keyword arguments
        for its client."""
        return to_anthropic(self.messages)


def assemble_context(
    session_id: str,
    memory_store: Repository,
    budget: TokenBudget,
    *,
    system: str | None = None,
    query: str | None = None,
) -> Context:
    """The context of a session within `budget.available` tokens, as the store counts them.

    `system` comes first and is counted, in place of `budget.reserve_system`. For a `query`, such as the user's last
    message, folded turns that fit it best are fetched back, into what room is left. Messages come out as they came in,
    each answer right behind its call; tool results whose call was folded, and calls that were abandoned, stand as text,
    which every provider accepts. A session without turns gives an empty context.

    Raises `InvalidArgument` where the budget cannot hold the pinned turns and the fresh tail even with their longest
    texts shortened.
    """
    return drive(assemble(session_id, immediately(memory_store), budget, system, query))


async def assemble(
    session_id: str, store: AsyncRepository, budget: TokenBudget, system: str | None, query: str | None
) -> Context:
    check_session_id(session_id)
    summaries, turns = await store.get_active_context(session_id)
    opening, opening_tokens, room = [], 0, budget.available
    if system is not None:
        opening = [{"role": "system", "content": system}]
        opening_tokens = store.token_counter.count(system) + MESSAGE_OVERHEAD_TOKENS
        room += budget.reserve_system - opening_tokens
        if room < 1:
            raise InvalidArgument(
                f"system takes {opening_tokens:,} tokens and leaves none of {budget.total:,}; shorten it"
            )
    fitting = Fitting(summaries, turns, budget, room, store.token_counter)
    fitting.fit()
    recalled, recollection, cost = await _recalled(session_id, store, query, fitting, room)
    return Context(
        messages=[*opening, *fitting.messages(before_last=recollection)],
        token_count=opening_tokens + fitting.tokens + cost,
        summaries=fitting.summaries,
        turns=fitting.turns,
        left_out=fitting.left_out,
        shortened=fitting.shortened,
        recalled=recalled,
    )


async def _recalled(
    session_id: str, store: AsyncRepository, query: str | None, fitting: Fitting, room: int
) -> tuple[list[Turn], list[dict[str, Any]], int]:
    """The turns for a query, a message that tells them, and what it takes."""
    if not query or not fitting.turns:
        return [], [], 0
    most = min(room - fitting.tokens, room // SHARE_FOR_RECALL)
    found = await ranked(session_id, store, await understood(query, store), "turns", MOST_RECALLED + len(fitting.turns))
    shown = {turn.position for turn in fitting.turns}
    wanted = [one.position for one in found if one.position not in shown][:MOST_RECALLED]
    by_position = {turn.position: turn for turn in await store.get_turns_at(session_id, wanted)} if wanted else {}
    chosen: list[Turn] = []
    message: list[dict[str, Any]] = []
    tokens = 0
    for turn in (by_position[position] for position in wanted if position in by_position):
        more = sorted([*chosen, turn], key=lambda turn: turn.position)
        told = _recollection(more)
        cost = store.token_counter.count(told["content"]) + MESSAGE_OVERHEAD_TOKENS
        if cost <= most:
            chosen, message, tokens = more, [told], cost
    return chosen, message, tokens


def _recollection(turns: Sequence[Turn]) -> dict[str, Any]:
    text = transcript(turns)
    mark = mark_for("recalled", text)
    positions = ", ".join(str(turn.position) for turn in turns)
    return {"role": "user", "content": f'<{mark} turns="{positions}">\n{text}\n</{mark}>'}
