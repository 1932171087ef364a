"""A stretch of a conversation as the text that a model summarizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from hashlib import blake2b

from turnfold.content import readable_calls, readable_text
from turnfold.records import SummaryRecord, Turn
from turnfold.tokens import TokenCounter

__all__ = ["chapters", "mark_for", "pieces_of", "transcript"]


def transcript(turns: Sequence[Turn]) -> str:
    """The turns as a model reads them: speaker, time in UTC, words, tool names, all arguments and results.

    Later lines of a turn are indented, so that no text can pass for a turn of another speaker.
    """
    lines: list[str] = []
    day: date | None = None
    minute: tuple[int, int] | None = None
    for turn in turns:
        speaker = f"{turn.role} {turn.name}" if turn.name else turn.role
        time = turn.created_at.astimezone(UTC) if turn.created_at else None
        if time is not None and day != time.date():
            day = time.date()
            lines.append(f"— {day}, times in UTC —")
        before, minute = minute, (time.hour, time.minute) if time else None
        if time is not None and minute != before:
            speaker = f"{speaker} {time:%H:%M}"
        lines += [f"{speaker}{words}".replace("\n", "\n  ") for words in _utterances(turn)]
    return "\n".join(lines).replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def chapters(summaries: Sequence[SummaryRecord]) -> str:
    """The summaries as a model reads them: the turns and the time that each stands for, and its text."""
    return "\n\n".join(
        f"[Turns {summary.first_position} to {summary.last_position}, {_minute(summary.time_range_start)} to "
        f"{_minute(summary.time_range_end)} UTC]\n{summary.content}"
        for summary in summaries
    )


def pieces_of(text: str, max_tokens: int, counter: TokenCounter) -> Iterator[str]:
    """`text` in pieces that a model can read, cut at line ends, and inside a line only where it alone is too long."""
    total = counter.count(text)
    if total <= max_tokens:
        yield text
        return
    piece: list[str] = []
    tokens = 0
    for line in _short_lines(text, max_tokens, counter):
        cost = counter.count(line) + 1
        if piece and tokens + cost > max_tokens:
            yield "\n".join(piece)
            piece, tokens = [], 0
        piece.append(line)
        tokens += cost
    yield "\n".join(piece)


def mark_for(kind: str, text: str) -> str:
    """The name of the tags around a text: from its own digest, so that nothing in it can close them."""
    return f"{kind}-{blake2b(text.encode('utf-8', 'replace'), digest_size=4).hexdigest()}"


def _utterances(turn: Turn) -> Iterator[str]:
    text = readable_text(turn.content)
    calls = list(readable_calls(turn)) if turn.tool_calls else []
    if text or not calls:
        yield f": {text}"
    for name, arguments in calls:
        yield f" calls {name}: {arguments}"


def _minute(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%d %H:%M}"


def _short_lines(text: str, max_tokens: int, counter: TokenCounter) -> Iterator[str]:
    for line in text.split("\n"):
        parts = [line]
        while parts:
            part = parts.pop(0)
            if counter.count(part) < max_tokens or len(part) < 2:
                yield part
            else:
                parts[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
