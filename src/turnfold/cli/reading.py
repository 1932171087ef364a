"""The commands that only read, and the server that lets an agent read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

import turnfold
from turnfold import SqlRepository, TokenBudget, Turn
from turnfold.cli import opening, render
from turnfold.cli.options import (
    AsJson,
    DatabaseUrl,
    EmbedderName,
    FreshTailCount,
    Schema,
    SearchIn,
    SessionId,
    SummaryId,
)
from turnfold.tools import Scope

__all__ = ["reading"]

reading = typer.Typer()


@reading.command(epilog="Example: turnfold status --database-url sqlite:///chats.db")
def status(
    database_url: DatabaseUrl,
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="One session; all where left out.")] = None,
    schema: Schema = None,
    as_json: AsJson = False,
) -> None:
    """Show sessions: their turns, how many are folded, and the tokens of the active context."""
    with opening.store(database_url, schema) as store:
        sessions = store.get_sessions() if session is None else [opening.session(store, session)]
        render.sessions(sessions, as_json=as_json)


@reading.command(epilog="Example: turnfold tree chats-1 --database-url sqlite:///chats.db")
def tree(session: SessionId, database_url: DatabaseUrl, schema: Schema = None, as_json: AsJson = False) -> None:
    """Show the tree of summaries of a session."""
    with opening.store(database_url, schema) as store:
        render.tree(opening.session(store, session), store.get_summaries(session), as_json=as_json)


@reading.command(epilog="Example: turnfold turns chats-1 --after 100 --limit 20 --database-url sqlite:///chats.db")
def turns(
    session: SessionId,
    database_url: DatabaseUrl,
    schema: Schema = None,
    after: Annotated[int, typer.Option(min=0, help="Only turns after this position.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many turns; all where left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the turns of a session, whole."""
    with opening.store(database_url, schema) as store:
        opening.session(store, session)
        render.turns(_paged(store, session, after, limit), as_json=as_json)


@reading.command(epilog="Example: turnfold context chats-1 --total 8000 --json --database-url sqlite:///chats.db")
def context(
    session: SessionId,
    database_url: DatabaseUrl,
    schema: Schema = None,
    total: Annotated[int, typer.Option(help="The tokens that the context may take.")] = 30_000,
    fresh_tail_count: FreshTailCount = 16,
    as_json: AsJson = False,
) -> None:
    """Print the context that a model would see, within a number of tokens."""
    with opening.store(database_url, schema) as store:
        opening.session(store, session)
        budget = TokenBudget(total=total, fresh_tail_count=fresh_tail_count)
        with render.paged(as_json):
            render.context(turnfold.assemble_context(session, store, budget), as_json=as_json)


@reading.command(
    epilog="Example: turnfold search 'why did the build fail' --session chats-1 --database-url sqlite:///chats.db"
)
def search(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A question or some words, in plain language.")],
    database_url: DatabaseUrl,
    schema: Schema = None,
    session: Annotated[str | None, typer.Option(help="One session; all where left out.")] = None,
    in_: Annotated[SearchIn, typer.Option("--in", help="What to search.")] = SearchIn.turns,
    limit: Annotated[int, typer.Option(min=1, help="At most so many hits.")] = 10,
    embedder: EmbedderName = None,
    as_json: AsJson = False,
) -> None:
    """Find turns and summaries by what they say, best first."""
    with opening.store(database_url, schema, embedder) as store:
        if session is not None:
            opening.session(store, session)
        hits = turnfold.search(session, store, query, limit=limit, in_=in_.value)
        with render.paged(as_json):
            render.hits(hits, as_json=as_json)


@reading.command(epilog="Example: turnfold describe sum-0f4cfa58b7a558ec --database-url sqlite:///chats.db")
def describe(summary: SummaryId, database_url: DatabaseUrl, schema: Schema = None, as_json: AsJson = False) -> None:
    """Tell what a summary stands for, and what is above and below it in the tree."""
    with opening.store(database_url, schema) as store, render.paged(as_json):
        render.description(turnfold.describe(summary, store), as_json=as_json)


@reading.command(epilog="Example: turnfold expand sum-0f4cfa58b7a558ec --turns --database-url sqlite:///chats.db")
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
    with opening.store(database_url, schema) as store, render.paged(as_json):
        children = [] if to_turns else store.get_child_summaries(summary)
        if children:
            render.summaries(children, as_json=as_json)
        else:
            found = turnfold.expand(summary, store, max_tokens=max_tokens, after_position=after)
            render.expansion(found, as_json=as_json)


@reading.command(epilog="Example: turnfold mcp --session chats-1 --database-url sqlite:///chats.db")
def mcp(
    database_url: DatabaseUrl,
    schema: Schema = None,
    session: Annotated[str | None, typer.Option(help="The session that the agent may read.")] = None,
    session_prefix: Annotated[str, typer.Option(help="Or: all sessions whose id begins so.")] = "",
    http: Annotated[bool, typer.Option("--http", help="Serve over HTTP, not on standard input and output.")] = False,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where to listen; the path is /mcp.")] = 8000,
    embedder: EmbedderName = None,
) -> None:
    """Serve recall to an agent as an MCP server: search, describe, expand and around."""
    from turnfold.mcp_server import serve_http, serve_stdio

    scope = Scope(session, session_prefix)
    with opening.store(database_url, schema, embedder) as store:
        if http:
            serve_http(store, scope, host, port)
        else:
            serve_stdio(store, scope)


def _paged(store: SqlRepository, session_id: str, after: int, limit: int | None) -> Iterator[Turn]:
    left = limit
    while left is None or left > 0:
        page = store.get_session_turns(session_id, after_position=after, limit=min(left or 500, 500))
        if not page:
            return
        yield from page
        after = page[-1].position
        left = None if left is None else left - len(page)
