"""The options and arguments that several commands share."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

DatabaseUrl = Annotated[
    str,
    typer.Option(
        "--database-url",
        envvar="TURNFOLD_DATABASE_URL",
        help="Any SQLAlchemy URL: sqlite:///chats.db or postgresql://user@host/database.",
        show_default=False,
    ),
]
Schema = Annotated[str | None, typer.Option("--schema", help="The PostgreSQL schema of the tables.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id; `turnfold status` lists them.")]
FreshTailCount = Annotated[int, typer.Option(help="The newest turns, which are never folded.")]
LeafChunkTokens = Annotated[int, typer.Option(help="About how many tokens one leaf stands for.")]
CondensedMinFanout = Annotated[int, typer.Option(help="How many summaries of a depth are condensed at the least.")]
BaseUrl = Annotated[str | None, typer.Option(help="Where the model's server is, if not at its provider.")]

EmbedderName = Annotated[
    str | None,
    typer.Option("--embedder", help="module:attribute of the embedder; by words alone where left out."),
]

SummaryId = Annotated[str, typer.Argument(metavar="SUMMARY", help="A summary's id; `turnfold tree` shows them.")]


class SearchIn(StrEnum):
    turns = "turns"
    summaries = "summaries"
    both = "both"


class StaleFor(StrEnum):
    fallback = "fallback"
    prompt_version = "prompt_version"
    model = "model"
