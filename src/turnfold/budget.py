"""How many tokens a context may take, and how it is kept within them."""

from __future__ import annotations

from dataclasses import dataclass

from turnfold.errors import InvalidArgument
from turnfold.planning import Limits, check_count, check_threshold

__all__ = ["TokenBudget"]


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """How many tokens the model's window has, and what they are for.

    Of `total` tokens the reserves are kept free: `reserve_system` for a system prompt that is not handed to
    `assemble_context`, `reserve_tools` for tool definitions, `reserve_answer` for the answer; the rest is `available`.
    `context_threshold` is the share of that above which `compact_if_needed` compacts. `fresh_tail_tokens` caps the
    fresh tail: of the newest `fresh_tail_count` turns only as many as fit into it (one at the least, and no tool call
    without its answers) stay in any context and are never folded. The rest are the limits of `compact_session`.

    Raises `InvalidArgument`, by name, for a value out of range.
    """

    total: int
    context_threshold: float = 0.75
    fresh_tail_count: int = 16
    leaf_chunk_tokens: int = 20_000
    condensed_min_fanout: int = 4
    reserve_system: int = 0
    reserve_tools: int = 0
    reserve_answer: int = 0
    fresh_tail_tokens: int | None = None

    def __post_init__(self) -> None:
        check_count("total", self.total, at_least=1)
        check_threshold("context_threshold", self.context_threshold)
        for name in ("reserve_system", "reserve_tools", "reserve_answer"):
            check_count(name, getattr(self, name), at_least=0)
        if self.available < 1:
            raise InvalidArgument(
                f"reserve_system, reserve_tools and reserve_answer take {self.total - self.available:,} tokens of a "
                f"total of {self.total:,}; leave some for the conversation"
            )
        self.limits()

    @property
    def available(self) -> int:
        """The tokens that are left for the conversation."""
        return self.total - self.reserve_system - self.reserve_tools - self.reserve_answer

    def limits(self) -> Limits:
        return Limits(
            fresh_tail_count=self.fresh_tail_count,
            leaf_chunk_tokens=self.leaf_chunk_tokens,
            condensed_min_fanout=self.condensed_min_fanout,
            fresh_tail_tokens=self.fresh_tail_tokens,
        )
