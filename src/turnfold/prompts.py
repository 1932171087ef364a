"""The instructions to the model that summarizes: turnfold's own, and the form of your own.

Whatever the instructions say, turnfold adds what no prompt may lack: that the transcript is data, between marks that
nothing in it can close, and that the language of the conversation stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from string import Formatter

from turnfold.errors import InvalidArgument
from turnfold.records import Tier

__all__ = ["Prompts"]

OWN_VERSION = "turnfold-1"
"""To be raised with every change of a text below: `refold_session` finds what older prompts made."""

MAX_VERSION_CHARACTERS = 64

_LEAF = """You keep the memory of a long conversation. Summarize its next part for a colleague who goes on with it
without having read it, in at most {target} tokens. Keep
- decisions and their reasons; where one was changed, the latest, and what it replaced
- open tasks, unanswered questions and promises, and whose they are
- names, numbers, dates, paths, identifiers and commands, exactly
- errors, exactly, and what solved them
- who said or wanted what
Leave out greetings and repetitions.
"""

_LEAF_AGGRESSIVE = """Summarize the next part of a conversation in at most {target} tokens; a longer answer is useless.
Write short lines, not sentences. Keep only decisions, open tasks, corrections, and exact names, numbers, paths and
errors.
"""

_CONDENSED = """You keep the memory of a long conversation. Below are summaries of neighbouring parts of it, oldest
first. Make one summary of them, in at most {target} tokens, for a colleague who goes on with the conversation. Tell how
things developed and where they stand now; where parts disagree, the latest is right. Keep decisions and their reasons,
open tasks and promises, and exact names, numbers, dates, paths and errors that may be needed again. Leave out steps
that no longer matter.
"""

_CONDENSED_DEEPER = """You keep the memory of a very long conversation. Below are summaries of long stretches of it,
oldest first. Make one summary of them, in at most {target} tokens, for a colleague who goes on with the conversation.
Write what lasts: who takes part and what they want, what was decided and why, what was built or agreed, what is still
open or promised, and the names, numbers, dates and paths that all of this hangs on. Where parts disagree, the latest
is right. Tell the course of things in a few sentences; single steps do not matter any more.
"""

_CONDENSED_AGGRESSIVE = """Below are summaries of neighbouring parts of a conversation, oldest first. Make one of
them, in at most {target} tokens; a longer answer is useless. Write short lines. Keep only where things stand now:
decisions, open tasks, and exact names, numbers, paths and errors that may be needed again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """Instructions to the model that summarizes, and their `version`, which stands on each summary made with them.

    `leaf` is for turns, `condensed` for summaries: one text for each depth from 1 on, the last for all deeper ones, so
    that memory becomes more abstract with depth. The aggressive ones follow an answer that was of no use. In each
    `{target}` stands for the tokens that the summary may take and `{depth}` for its depth; a brace is written twice.

    Raises `InvalidArgument` for another placeholder, an empty text, a version that is empty or longer than 64
    characters, and for turnfold's own version with other texts.
    """

    version: str
    leaf: str = _LEAF
    leaf_aggressive: str = _LEAF_AGGRESSIVE
    condensed: tuple[str, ...] = (_CONDENSED, _CONDENSED_DEEPER)
    condensed_aggressive: str = _CONDENSED_AGGRESSIVE

    def __post_init__(self) -> None:
        if not isinstance(self.version, str) or not 1 <= len(self.version) <= MAX_VERSION_CHARACTERS:
            raise InvalidArgument(
                f"version must be a text of 1 to {MAX_VERSION_CHARACTERS} characters, not {self.version!r}"
            )
        if not isinstance(self.condensed, tuple) or not self.condensed:
            raise InvalidArgument("condensed must be a tuple of at least one text: one for each depth from 1 on")
        for name in ("leaf", "leaf_aggressive", "condensed_aggressive"):
            _check(name, getattr(self, name))
        for index, template in enumerate(self.condensed):
            _check(f"condensed[{index}]", template)
        if self.version == OWN_VERSION and self._texts() != _OWN_TEXTS:
            raise InvalidArgument(f"version {OWN_VERSION!r} names turnfold's own texts; give yours another")

    def for_depth(self, depth: int) -> Mapping[Tier, str]:
        """The text for each tier that asks a model, in their order, for a summary of `depth`."""
        if depth == 0:
            return {"normal": self.leaf, "aggressive": self.leaf_aggressive}
        normal = self.condensed[min(depth, len(self.condensed)) - 1]
        return {"normal": normal, "aggressive": self.condensed_aggressive}

    def _texts(self) -> tuple[object, ...]:
        return (self.leaf, self.leaf_aggressive, self.condensed, self.condensed_aggressive)


def _check(name: str, template: object) -> None:
    if not isinstance(template, str) or not template.strip():
        raise InvalidArgument(f"prompt {name} is empty or no text; leave it out to use turnfold's own")
    try:
        fields = {field for _, field, _, _ in Formatter().parse(template) if field is not None}
    except ValueError as error:
        raise InvalidArgument(f"prompt {name}: {error}; write a brace that is no placeholder twice") from None
    if unknown := sorted(fields - {"target", "depth"}):
        raise InvalidArgument(
            f"prompt {name} has the placeholder {{{unknown[0]}}}; use {{target}} and {{depth}}, "
            "and write a brace that is no placeholder twice"
        )


_OWN_TEXTS = (_LEAF, _LEAF_AGGRESSIVE, (_CONDENSED, _CONDENSED_DEEPER), _CONDENSED_AGGRESSIVE)

OWN_PROMPTS = Prompts(version=OWN_VERSION)
