"""The commands and their options."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from sqlalchemy import Engine

import turnfold
from turnfold import SqlRepository, Summarizer, TokenBudget, Turn, extractive
from turnfold.cli import render
from turnfold.cli.options import (
    AsJson,
    BaseUrl,
    CondensedMinFanout,
    DatabaseUrl,
    FreshTailCount,
    LeafChunkTokens,
    Schema,
    SearchIn,
    SessionId,
    StaleFor,
    SummaryId,
)
from turnfold.errors import DatabaseUnavailable, UnknownSession, UnreadableConversation
from turnfold.integrations.openai_messages import STANDARD_INPUT, import_conversations, read_conversations
from turnfold.models.llm import LLM
from turnfold.tools import Scope

app = typer.Typer(
    name="turnfold",
    help="Keeps every turn of long conversations in your database and folds old ones into a tree of summaries.",
    epilog="Start with: turnfold demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnfold {version('turnfold')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: turnfold demo --database chats.db")
def demo(
    database: Annotated[Path, typer.Option(help="The SQLite file to fold into; made where absent.")] = Path(
        "turnfold-demo.db"
    ),
) -> None:
    """Fold a conversation that ships with turnfold, offline, and show the tree and the context."""
    budget = TokenBudget(total=4_000, fresh_tail_count=8, leaf_chunk_tokens=1_500, condensed_min_fanout=3)
    turns = _demo_turns()
    with _engine(f"sqlite:///{database}", may_create=True) as engine:
        turnfold.migrate(engine)
        store = SqlRepository(engine)
        summarizer = Summarizer(extractive)
        with render.progress("Talking", total=len(turns)) as advance:
            for turn in turns:
                store.append_turns("demo", [turn])
                turnfold.compact_if_needed("demo", store, summarizer, budget)
                advance(1)
        render.demo(
            database, store, _session(store, "demo"), turnfold.assemble_context("demo", store, budget), budget.total
        )


@app.command(epilog="Example: turnfold migrate --database-url postgresql://app@localhost/app --schema turnfold")
def migrate(database_url: DatabaseUrl, schema: Schema = None) -> None:
    """Create the tables, or bring them up to date."""
    with _engine(database_url, may_create=True) as engine:
        turnfold.migrate(engine, schema)
        typer.echo(f"The turnfold tables of {engine.url.render_as_string(hide_password=True)} are up to date.")


@app.command("import", epilog="Example: turnfold import chats.jsonl --database-url sqlite:///chats.db")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="OpenAI chat messages as JSON or JSONL; - reads stdin.")],
    database_url: DatabaseUrl,
    schema: Schema = None,
    session: Annotated[str | None, typer.Option(help="The session's id; numbered where FILE holds several.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write the conversations of a file; importing it again adds nothing."""
    with _store(database_url, schema) as store, _opened(file) as opened:
        imported = import_conversations(opened, file, store, session_id=session)
        render.imported(imported, as_json=as_json)


@app.command(epilog="Example: turnfold compact chats-1 --database-url sqlite:///chats.db --leaf-chunk-tokens 4000")
def compact(
    session: SessionId,
    database_url: DatabaseUrl,
    schema: Schema = None,
    fresh_tail_count: FreshTailCount = 16,
    leaf_chunk_tokens: LeafChunkTokens = 20_000,
    condensed_min_fanout: CondensedMinFanout = 4,
    max_condense_depth: Annotated[int, typer.Option(help="The highest depth condensed from; -1: no bound.")] = -1,
    model: Annotated[
        str, typer.Option(help="extractive (offline), or one such as openai:gpt-5-mini or anthropic:claude-haiku-4-5.")
    ] = "extractive",
    base_url: BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Fold the old turns of a session, offline or through a model."""
    outcomes: list[turnfold.Outcome] = []
    with _summarizer(model, base_url) as summarizer, _store(database_url, schema) as store:
        record = _session(store, session)
        with render.compaction_progress() as on_progress:
            stats = turnfold.compact_session(
                session,
                store,
                summarizer,
                fresh_tail_count=fresh_tail_count,
                leaf_chunk_tokens=leaf_chunk_tokens,
                condensed_min_fanout=condensed_min_fanout,
                max_condense_depth=max_condense_depth,
                on_progress=on_progress,
                on_outcome=outcomes.append,
            )
        render.compacted(record, _session(store, session), stats, outcomes[-1], as_json=as_json)


@app.command(epilog="Example: turnfold refold chats-1 --model openai:gpt-5-mini --database-url sqlite:///chats.db")
def refold(
    session: SessionId,
    model: Annotated[
        str, typer.Option(help="One such as openai:gpt-5-mini or anthropic:claude-haiku-4-5, or extractive (offline).")
    ],
    database_url: DatabaseUrl,
    schema: Schema = None,
    stale: Annotated[
        list[StaleFor] | None, typer.Option(help="What to make again; may be given several times.  [default: fallback]")
    ] = None,
    max_model_calls: Annotated[int | None, typer.Option(help="At most about so many calls of the model.")] = None,
    base_url: BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make summaries again from their sources, now that the model is back or another one is to do it."""
    outcomes: list[turnfold.Outcome] = []
    with _summarizer(model, base_url) as summarizer, _store(database_url, schema) as store:
        _session(store, session)
        with render.refold_progress() as on_progress:
            stats = turnfold.refold_session(
                session,
                store,
                summarizer,
                stale=[reason.value for reason in stale or [StaleFor.fallback]],
                max_model_calls=max_model_calls,
                on_progress=on_progress,
                on_outcome=outcomes.append,
            )
        render.refolded(_session(store, session), stats, outcomes[-1], as_json=as_json)


@app.command(epilog="Example: turnfold status --database-url sqlite:///chats.db")
def status(
    database_url: DatabaseUrl,
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="One session; all where left out.")] = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Show sessions: their turns, how many are folded, and the tokens of the active context."""
    with _store(database_url, schema) as store:
        sessions = store.get_sessions() if session is None else [_session(store, session)]
        render.sessions(sessions, as_json=as_json)


@app.command(epilog="Example: turnfold tree chats-1 --database-url sqlite:///chats.db")
def tree(session: SessionId, database_url: DatabaseUrl, schema: Schema = None, as_json: AsJson = False) -> None:
    """Show the tree of summaries of a session."""
    with _store(database_url, schema) as store:
        render.tree(_session(store, session), store.get_summaries(session), as_json=as_json)


@app.command(epilog="Example: turnfold turns chats-1 --after 100 --limit 20 --database-url sqlite:///chats.db")
def turns(
    session: SessionId,
    database_url: DatabaseUrl,
    schema: Schema = None,
    after: Annotated[int, typer.Option(min=0, help="Only turns after this position.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many turns; all where left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the turns of a session, whole."""
    with _store(database_url, schema) as store:
        _session(store, session)
        render.turns(_paged(store, session, after, limit), as_json=as_json)


@app.command(epilog="Example: turnfold context chats-1 --total 8000 --json --database-url sqlite:///chats.db")
def context(
    session: SessionId,
    database_url: DatabaseUrl,
    schema: Schema = None,
    total: Annotated[int, typer.Option(help="The tokens that the context may take.")] = 30_000,
    fresh_tail_count: FreshTailCount = 16,
    as_json: AsJson = False,
) -> None:
    """Print the context that a model would see, within a number of tokens."""
    with _store(database_url, schema) as store:
        _session(store, session)
        budget = TokenBudget(total=total, fresh_tail_count=fresh_tail_count)
        render.context(turnfold.assemble_context(session, store, budget), as_json=as_json)


@app.command(
    epilog="Example: turnfold search 'why did the build fail' --session chats-1 --database-url sqlite:///chats.db"
)
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A question or some words, in plain language.")],
    database_url: DatabaseUrl,
    schema: Schema = None,
    session: Annotated[str | None, typer.Option(help="One session; all where left out.")] = None,
    in_: Annotated[SearchIn, typer.Option("--in", help="What to search.")] = SearchIn.turns,
    limit: Annotated[int, typer.Option(min=1, help="At most so many hits.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Find turns and summaries by what they say, best first."""
    with _store(database_url, schema) as store:
        if session is not None:
            _session(store, session)
        hits = turnfold.search(session, store, query, limit=limit, in_=in_.value)
        with render.paged(as_json):
            render.hits(hits, as_json=as_json)


@app.command(epilog="Example: turnfold describe sum-0f4cfa58b7a558ec --database-url sqlite:///chats.db")
def describe(summary: SummaryId, database_url: DatabaseUrl, schema: Schema = None, as_json: AsJson = False) -> None:
    """Tell what a summary stands for, and what is above and below it in the tree."""
    with _store(database_url, schema) as store, render.paged(as_json):
        render.description(turnfold.describe(summary, store), as_json=as_json)


@app.command(epilog="Example: turnfold expand sum-0f4cfa58b7a558ec --turns --database-url sqlite:///chats.db")
def expand(
    summary: SummaryId,
    database_url: DatabaseUrl,
    schema: Schema = None,
    to_turns: Annotated[bool, typer.Option("--turns", help="Go down to the turns at once.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="At most so many tokens of turns, one turn at least.")] = None,
    after: Annotated[int, typer.Option(min=0, help="Only turns after this position.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print what a summary was made from: its children, or the turns that it stands for."""
    with _store(database_url, schema) as store, render.paged(as_json):
        children = [] if to_turns else store.get_child_summaries(summary)
        if children:
            render.summaries(children, as_json=as_json)
        else:
            found = turnfold.expand(summary, store, max_tokens=max_tokens, after_position=after)
            render.expansion(found, as_json=as_json)


@app.command(epilog="Example: turnfold mcp --session chats-1 --database-url sqlite:///chats.db")
def mcp(
    database_url: DatabaseUrl,
    schema: Schema = None,
    session: Annotated[str | None, typer.Option(help="The session that the agent may read.")] = None,
    session_prefix: Annotated[str, typer.Option(help="Or: all sessions whose id begins so.")] = "",
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP, not on standard input and output.")] = False,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen; the path is /mcp.")] = 8000,
) -> None:
    """Serve recall to an agent as an MCP server: search, describe, expand and around."""
    from turnfold.mcp_server import serve_http, serve_stdio

    scope = Scope(session, session_prefix)
    with _store(database_url, schema) as store:
        if http:
            serve_http(store, scope, host, port)
        else:
            serve_stdio(store, scope)


@app.command(epilog="Example: turnfold doctor --repair --database-url sqlite:///chats.db")
def doctor(
    database_url: DatabaseUrl,
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="One session; all where left out.")] = None,
    schema: Schema = None,
    repair: Annotated[bool, typer.Option("--repair", help="Mend counters and leases that ran out.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify that every promise holds; exit code 1 where one does not."""
    with _store(database_url, schema) as store:
        faults = turnfold.repair(store, session) if repair else turnfold.check(store, session)
        render.faults(faults, as_json=as_json)
    if faults:
        raise typer.Exit(1)


@app.command(epilog="Example: turnfold erase chats-1 --yes --database-url sqlite:///chats.db")
def erase(
    session: SessionId,
    database_url: DatabaseUrl,
    schema: Schema = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a session for good: its turns, its summaries and what links them."""
    with _store(database_url, schema) as store:
        record = _session(store, session)
        if not yes:
            typer.confirm(f"Delete all {record.last_position:,} turns of {render.plain(session)} for good?", abort=True)
        turnfold.erase_session(session, store)
        render.erased(record, as_json=as_json)


@contextmanager
def _engine(url: str, *, may_create: bool = False) -> Iterator[Engine]:
    engine = turnfold.create_engine(url)
    file = engine.url.database
    if engine.dialect.name == "sqlite" and not may_create and file and not Path(file).exists():
        raise DatabaseUnavailable(f"there is no database file {file}; `turnfold migrate` makes one")
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def _store(url: str, schema: str | None) -> Iterator[SqlRepository]:
    with _engine(url) as engine:
        yield SqlRepository(engine, schema)


@contextmanager
def _summarizer(model: str, base_url: str | None) -> Iterator[Summarizer]:
    loaded = turnfold.load_model(model, base_url=base_url)
    try:
        yield Summarizer(loaded)
    finally:
        if isinstance(loaded, LLM):
            loaded.close()


def _session(store: SqlRepository, session_id: str) -> turnfold.SessionRecord:
    session = store.get_session(session_id)
    if session is None:
        raise UnknownSession(f"there is no session {session_id!r} in this database; `turnfold status` lists them")
    return session


def _paged(store: SqlRepository, session_id: str, after: int, limit: int | None) -> Iterator[Turn]:
    left = limit
    while left is None or left > 0:
        page = store.get_session_turns(session_id, after_position=after, limit=min(left or 500, 500))
        if not page:
            return
        yield from page
        after = page[-1].position
        left = None if left is None else left - len(page)


@contextmanager
def _opened(file: str) -> Iterator[BinaryIO]:
    """The file, seekable; standard input is copied first."""
    if file == STANDARD_INPUT:
        with tempfile.TemporaryFile() as copy:
            while block := sys.stdin.buffer.read(1 << 20):
                copy.write(block)
            copy.seek(0)
            yield copy
        return
    try:
        opened = Path(file).open("rb")  # noqa: SIM115
    except OSError as error:
        raise UnreadableConversation(f"{file}: {error.strerror or error}; nothing was written") from None
    with opened:
        yield opened


def _demo_turns() -> list[Turn]:
    """The conversation, one turn every 75 seconds from a fixed start, so that every run shows the same."""
    start = datetime(2026, 3, 10, 8, 30, tzinfo=UTC)
    with (files("turnfold.cli") / "demo.json").open("rb") as file:
        conversation = next(read_conversations(file, "demo.json"))  # type: ignore[arg-type]
    return [
        replace(turn, created_at=start + timedelta(seconds=75 * index)) for index, turn in enumerate(conversation.turns)
    ]
