"""Every context of every conversation of tau-bench, at every turn, with limits by chance: is it accepted, does it fit,
and does it change only at its end? By a strict reading of OpenAI's and Anthropic's rules, and by exact counts.

Run: python -m benchmarks.accepted_contexts
"""

from __future__ import annotations

import random

from benchmarks.databases import real_conversations, sqlite_store
from tests.strict import anthropic_faults, openai_faults
from turnfold import (
    ExactCounter,
    InvalidArgument,
    SqlRepository,
    Summarizer,
    TokenBudget,
    Turn,
    assemble_context,
    compact_if_needed,
    extractive,
)
from turnfold.tokens import count_turn


def main() -> None:
    contexts = refused = faults = over = changed = compactions = 0
    with sqlite_store() as plain:
        store = SqlRepository(plain._engine, token_counter=ExactCounter())
        for number, (session, turns) in enumerate(real_conversations()):
            if not session.startswith("tau-"):
                continue
            chance = random.Random(number)
            budget = TokenBudget(
                total=chance.choice([4_000, 6_000, 10_000, 20_000]),
                fresh_tail_count=chance.randint(1, 12),
                leaf_chunk_tokens=chance.choice([500, 1_000, 3_000]),
                fresh_tail_tokens=chance.choice([None, 1_500, 3_000]),
            )
            before: list[object] = []
            for turn in turns:
                store.append_turns(session, [turn])
                try:
                    context = assemble_context(session, store, budget)
                except InvalidArgument:
                    refused += 1
                    continue
                contexts += 1
                body = context.anthropic()
                is_waiting = body["messages"][-1]["content"][-1]["type"] == "tool_use" if body["messages"] else False
                faults += len(openai_faults(context.messages)) + len([] if is_waiting else anthropic_faults(body))
                exact = sum(count_turn(store.token_counter, Turn.from_message(one)) for one in context.messages)
                over += exact > budget.total
                changed += bool(before) and list(context.messages[: len(before)]) != before
                before = list(context.messages)
                if compact_if_needed(session, store, Summarizer(extractive), budget):
                    before = []
                    compactions += 1
    print(
        f"{contexts:,} contexts, {compactions:,} compactions between them: {faults} faults, {over} over the budget, "
        f"{changed} changed before their end though nothing was folded ({changed / contexts:.1%}); "
        f"{refused} times the pinned turns and the tail were too large, and that was said"
    )


if __name__ == "__main__":
    main()
