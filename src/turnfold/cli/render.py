"""What the commands print: for people on a terminal, or as JSON.

Whatever comes out of a conversation passes `plain`: no escape sequence of a turn reaches the terminal.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from turnfold import (
    CompactionStats,
    Context,
    Description,
    EmbedStats,
    Expansion,
    Fault,
    Hit,
    Outcome,
    RefoldStats,
    SessionRecord,
    SqlRepository,
    SummaryRecord,
    Turn,
)
from turnfold.content import readable_calls, readable_text
from turnfold.integrations.openai_messages import Imported

# Control characters but tab and line feed, lone surrogates, and what reorders or hides text.
_UNSAFE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")

out = Console(highlight=False, soft_wrap=True)


def plain(text: str) -> str:
    """`text` with everything that a terminal might obey or not encode written out, such as `\\x1b`."""
    safe = _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)
    encoding = sys.stdout.encoding or "utf-8"
    return safe.encode(encoding, "backslashreplace").decode(encoding)


def imported(found: Iterable[Imported], *, as_json: bool) -> None:
    if as_json:
        _print_json(list(found))
        return
    for item in found:
        _say(f"{item.session_id}: {item.turns:,} turns, {item.added:,} new")


# What people read where nothing was written; the others are raised as errors.
_REASONS = {
    Outcome.NOTHING_TO_FOLD: "nothing to fold",
    Outcome.PENDING_CALL: "nothing to fold before a tool call that waits for its answer",
}


def compacted(
    before: SessionRecord, after: SessionRecord, stats: CompactionStats, outcome: Outcome, *, as_json: bool
) -> None:
    if as_json:
        tokens = {"active_tokens_before": before.active_tokens, "active_tokens_after": after.active_tokens}
        _print_json({**stats, "outcome": outcome, **tokens})
    elif not stats["tiers_used"]:
        _say(f"{after.id}: {_REASONS.get(outcome, outcome)}; the active context has {after.active_tokens:,} tokens")
    else:
        _say(
            f"{after.id}: {stats['turns_compacted']:,} turns folded into {stats['leaf_summaries_created']:,} leaves, "
            f"{stats['condensed_summaries_created']:,} condensed summaries; "
            f"the active context went from {before.active_tokens:,} to {after.active_tokens:,} tokens"
        )


def embedded(done: Mapping[str, EmbedStats], *, as_json: bool) -> None:
    if as_json:
        _print_json(done)
        return
    for session_id, stats in done.items():
        _say(f"{session_id}: {stats['turns_embedded']:,} turns and {stats['summaries_embedded']:,} summaries embedded")


def refolded(after: SessionRecord, stats: RefoldStats, outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        _print_json({**stats, "outcome": outcome, "active_tokens": after.active_tokens})
        return
    kept = f", {stats['summaries_kept']:,} kept (the model had none better)" if stats["summaries_kept"] else ""
    more = "; more are left, call again" if outcome is Outcome.MAX_MODEL_CALLS else ""
    _say(
        f"{after.id}: {stats['summaries_refolded']:,} summaries made again{kept}{more}; "
        f"the active context has {after.active_tokens:,} tokens"
    )


def sessions(found: Sequence[SessionRecord], *, as_json: bool) -> None:
    if as_json:
        _print_json(found)
        return
    table = Table("session", box=None, pad_edge=False)
    for title in ("turns", "folded up to", "tokens", "active tokens"):
        table.add_column(title, justify="right")
    table.add_column("updated")
    table.add_column("compacted by")
    for session in found:
        table.add_row(
            Text(plain(session.id)),
            f"{session.last_position:,}",
            f"{session.covered_position:,}",
            f"{session.total_tokens:,}",
            f"{session.active_tokens:,}",
            _minute(session.updated_at),
            Text(plain(session.lease_owner or "-")),
        )
    out.print(table)


def tree(session: SessionRecord, found: Sequence[SummaryRecord], *, as_json: bool) -> None:
    if as_json:
        _print_json(found)
    else:
        out.print(_tree(session, found))


def turns(found: Iterable[Turn], *, as_json: bool) -> None:
    if as_json:
        _print_json(list(found))
        return
    for turn in found:
        head = f"#{turn.position} {turn.role} {turn.name or ''}".rstrip()
        out.print(Text(plain(f"{head}  {_minute(turn.created_at)}  {turn.token_count:,} tokens  {turn.id}"), "bold"))
        _say(_words(turn) + "\n")


def summaries(found: Sequence[SummaryRecord], *, as_json: bool) -> None:
    if as_json:
        _print_json(found)
        return
    for summary in found:
        out.print(Text(plain(_label(summary)), "bold"))
        _say(summary.content + "\n")


def hits(found: Sequence[Hit], *, as_json: bool) -> None:
    if as_json:
        _print_json(found)
        return
    for hit in found:
        head = f"{hit.session_id} #{hit.position} {hit.role}  {_minute(hit.created_at)}  {hit.score:.2f}  {hit.id}"
        out.print(Text(plain(head), "bold"))
        out.print(_highlighted(hit))
        _say("")
    if not found:
        _say("nothing found; try other words")


def description(found: Description, *, as_json: bool) -> None:
    if as_json:
        _print_json(found)
        return
    summary = found.summary
    out.print(Text(plain(_label(summary)), "bold"))
    _say(f"{_minute(summary.time_range_start)} to {_minute(summary.time_range_end)}, by {summary.model or '-'}")
    for above in found.ancestors:
        _say(f"part of    {_label(above)}")
    for below in found.children:
        _say(f"made from  {_label(below)}")
    _say(f"\n{summary.content}")


def expansion(found: Expansion, *, as_json: bool) -> None:
    if as_json:
        _print_json(found)
        return
    turns(found.turns, as_json=False)
    if found.next_position is not None:
        _say(f"more follows: --after {found.next_position}")


@contextmanager
def paged(as_json: bool) -> Iterator[None]:
    """On a terminal long output goes through the user's pager."""
    if as_json or not out.is_terminal:
        yield
    else:
        with out.pager(styles=True):
            yield


def _highlighted(hit: Hit) -> Text:
    line, end = Text(), 0
    for start, stop in hit.highlights:
        line.append(plain(hit.excerpt[end:start]))
        line.append(plain(hit.excerpt[start:stop]), "bold yellow")
        end = stop
    line.append(plain(hit.excerpt[end:]))
    return line


def context(found: Context, *, as_json: bool) -> None:
    if as_json:
        _print_json(
            {
                "messages": found.messages,
                "token_count": found.token_count,
                "left_out": found.left_out,
                "shortened": found.shortened,
            }
        )
        return
    for message in found.messages:
        turn = Turn.from_message(message)
        out.print(Text(plain(f"{turn.role} {turn.name or ''}".rstrip()), "bold"))
        _say(_words(turn) + "\n")
    _say(f"{len(found.messages):,} messages, {found.token_count:,} tokens")
    for left in found.left_out:
        _say(f"left out: {left.id}, {left.tokens:,} tokens")


def faults(found: Sequence[Fault], *, as_json: bool) -> None:
    if as_json:
        _print_json(found)
        return
    for fault in found:
        where = "the store" if fault.session_id is None else f"session {fault.session_id}"
        cure = "  (--repair mends it)" if fault.can_be_repaired else ""
        _say(f"{where}: {fault.kind}: {fault.message}{cure}")
    _say(f"{len(found):,} faults" if found else "no fault found")


def erased(session: SessionRecord, *, as_json: bool) -> None:
    if as_json:
        _print_json({"session_id": session.id, "turns": session.last_position})
    else:
        _say(f"{session.id}: {session.last_position:,} turns erased")


def demo(database: Path, store: SqlRepository, session: SessionRecord, found: Context, budget_tokens: int) -> None:
    """One screen: what went in, the tree, and the context line by line."""
    _say(
        f"An engineering session of {session.last_position} turns and {session.total_tokens:,} tokens went into "
        f"{database}; a model with room for {budget_tokens:,} tokens now sees {found.token_count:,}:\n"
    )
    out.print(_tree(session, store.get_summaries(session.id)))
    _say("")
    for message in found.messages:
        turn = Turn.from_message(message)
        words = " ".join(_words(turn).split())
        summary = re.match(r'<summary-\w+ id="([\w-]+)".*?> ', words)
        speaker = summary[1] if summary else " ".join(filter(None, (turn.role, turn.name)))
        line = Text(plain(f"{speaker:>20}  "), "dim")
        line.append(_clipped(words[summary.end() :] if summary else words, 92))
        out.print(line)
    deepest = max(found.summaries, key=lambda summary: summary.depth, default=None)
    if deepest:
        command = "turnfold" if shutil.which("turnfold") else sys.argv[0]
        _say(
            f"\nNothing is lost:  {command} expand {deepest.id} --database-url sqlite:///{database}\n"
            f"Every turn:       {command} turns {session.id} --database-url sqlite:///{database}"
        )


def _tree(session: SessionRecord, found: Sequence[SummaryRecord]) -> Tree:
    children: dict[str | None, list[SummaryRecord]] = {}
    for summary in sorted(found, key=lambda summary: (summary.first_position, -summary.depth)):
        children.setdefault(summary.parent_id, []).append(summary)
    root = Tree(
        Text(
            plain(
                f"{session.id}: {session.last_position:,} turns, {session.total_tokens:,} tokens; "
                f"active context {session.active_tokens:,} tokens"
            ),
            "bold",
        )
    )
    _grow(root, children, None, out.width - 4)
    uncovered = session.last_position - session.covered_position
    root.add(Text(f"turns {session.covered_position + 1:,}-{session.last_position:,}: {uncovered:,} not folded", "dim"))
    return root


def _grow(branch: Tree, children: dict[str | None, list[SummaryRecord]], parent: str | None, width: int) -> None:
    for summary in children.get(parent, ()):
        line = Text(plain(_label(summary)))
        if width - len(line) > 24:
            line.append(f"  {_clipped(' '.join(summary.content.split()), width - len(line) - 2)}", "dim")
        _grow(branch.add(line), children, summary.id, width - 4)


def _label(summary: SummaryRecord) -> str:
    return (
        f"{summary.id}  depth {summary.depth}, turns {summary.first_position:,}-{summary.last_position:,}, "
        f"{summary.source_token_count:,} → {summary.token_count:,} tokens"
        + ("" if summary.tier == "normal" else f", {summary.tier}")
    )


def _words(turn: Turn) -> str:
    calls = [f"→ {name} {arguments}" for name, arguments in readable_calls(turn)]
    return "\n".join(filter(None, [readable_text(turn.content), *calls]))


def _clipped(text: str, width: int) -> str:
    text = plain(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def _minute(time: datetime | None) -> str:
    return "-" if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _say(text: str) -> None:
    out.print(Text(plain(text)))


def _print_json(value: Any) -> None:
    json.dump(_jsonable(value), sys.stdout, indent=2)
    sys.stdout.write("\n")


def _jsonable(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _jsonable(asdict(value))
    if isinstance(value, dict):
        return {key: _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_jsonable(inner) for inner in value]
    return value.isoformat() if isinstance(value, datetime) else value
