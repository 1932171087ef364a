"""The command line: the commands that write; those that read stand in `reading.py`."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

import turnfold
from turnfold import SqlRepository, Summarizer, TokenBudget, Turn, extractive
from turnfold.cli import opening, progress, render
from turnfold.cli.options import (
    AsJson,
    BaseUrl,
    CondensedMinFanout,
    DatabaseUrl,
    FreshTailCount,
    LeafChunkTokens,
    Schema,
    SessionId,
    StaleFor,
)
from turnfold.cli.reading import reading
from turnfold.integrations.openai_messages import import_conversations, read_conversations

app = typer.Typer(
    name="turnfold",
    help="Keeps every turn of long conversations in your database and folds old ones into a tree of summaries.",
    epilog="Start with: turnfold demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(reading)


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
    with opening.engine(f"sqlite:///{database}", may_create=True) as engine:
        turnfold.migrate(engine)
        store = SqlRepository(engine)
        summarizer = Summarizer(extractive)
        with progress.talking(len(turns)) as advance:
            for turn in turns:
                store.append_turns("demo", [turn])
                turnfold.compact_if_needed("demo", store, summarizer, budget)
                advance(1)
        render.demo(
            database,
            store,
            opening.session(store, "demo"),
            turnfold.assemble_context("demo", store, budget),
            budget.total,
        )


@app.command(epilog="Example: turnfold migrate --database-url postgresql://app@localhost/app --schema turnfold")
def migrate(database_url: DatabaseUrl, schema: Schema = None) -> None:
    """Create the tables, or bring them up to date."""
    with opening.engine(database_url, may_create=True) as engine:
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
    with opening.store(database_url, schema) as store, opening.opened(file) as opened:
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
        str,
        typer.Option(help="extractive (offline), or one such as openai:gpt-6.1-terra or anthropic:claude-haiku-5-5."),
    ] = "extractive",
    base_url: BaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Fold the old turns of a session, offline or through a model."""
    outcomes: list[turnfold.Outcome] = []
    with opening.summarizer(model, base_url) as summarizer, opening.store(database_url, schema) as store:
        record = opening.session(store, session)
        with progress.folding() as on_progress:
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
        render.compacted(record, opening.session(store, session), stats, outcomes[-1], as_json=as_json)


@app.command(epilog="Example: turnfold refold chats-1 --model openai:gpt-6.1-terra --database-url sqlite:///chats.db")
def refold(
    session: SessionId,
    model: Annotated[
        str,
        typer.Option(help="One such as openai:gpt-6.1-terra or anthropic:claude-haiku-5-5, or extractive (offline)."),
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
    with opening.summarizer(model, base_url) as summarizer, opening.store(database_url, schema) as store:
        opening.session(store, session)
        with progress.refolding() as on_progress:
            stats = turnfold.refold_session(
                session,
                store,
                summarizer,
                stale=[reason.value for reason in stale or [StaleFor.fallback]],
                max_model_calls=max_model_calls,
                on_progress=on_progress,
                on_outcome=outcomes.append,
            )
        render.refolded(opening.session(store, session), stats, outcomes[-1], as_json=as_json)


@app.command(epilog="Example: turnfold embed --embedder my_service.search:embed --database-url sqlite:///chats.db")
def embed(
    embedder: Annotated[str, typer.Option(help="module:attribute of a function from texts to vectors.")],
    database_url: DatabaseUrl,
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="One session; all where left out.")] = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Give turns and summaries that have none yet their vectors, so that search finds them by meaning, too."""
    with opening.store(database_url, schema, embedder) as store:
        sessions = store.get_sessions() if session is None else [opening.session(store, session)]
        done = {}
        for record in sessions:
            with progress.embedding(record) as on_progress:
                done[record.id] = turnfold.embed_session(record.id, store, on_progress=on_progress)
        render.embedded(done, as_json=as_json)


@app.command(epilog="Example: turnfold doctor --repair --database-url sqlite:///chats.db")
def doctor(
    database_url: DatabaseUrl,
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="One session; all where left out.")] = None,
    schema: Schema = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend counters, leases that ran out, and the search index.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify that every promise holds; exit code 1 where one does not."""
    with opening.store(database_url, schema) as store:
        look = turnfold.repair if repair else turnfold.check
        with progress.checking() as on_progress:
            faults = look(store, session, on_progress=on_progress)
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
    with opening.store(database_url, schema) as store:
        record = opening.session(store, session)
        if not yes:
            typer.confirm(f"Delete all {record.last_position:,} turns of {render.plain(session)} for good?", abort=True)
        turnfold.erase_session(session, store)
        render.erased(record, as_json=as_json)


def _demo_turns() -> list[Turn]:
    """The conversation, one turn every 75 seconds from a fixed start, so that every run shows the same."""
    start = datetime(2026, 3, 10, 8, 30, tzinfo=UTC)
    with (files("turnfold.cli") / "demo.json").open("rb") as file:
        conversation = next(read_conversations(file, "demo.json"))  # type: ignore[arg-type]
    return [
        replace(turn, created_at=start + timedelta(seconds=75 * index)) for index, turn in enumerate(conversation.turns)
    ]
