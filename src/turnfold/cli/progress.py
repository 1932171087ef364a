"""The progress bars of long work: on standard error, cleared at their end; nothing where that is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

import turnfold
from turnfold import SessionRecord
from turnfold.cli.render import plain

__all__ = ["checking", "embedding", "folding", "refolding", "talking"]


@contextmanager
def talking(total: int) -> Iterator[Callable[[int], None]]:
    with _bar("") as bar:
        task = bar.add_task("Talking", total=total)
        yield lambda steps: bar.advance(task, steps)


@contextmanager
def folding() -> Iterator[turnfold.running.OnProgress]:
    with _bar("turns") as bar:
        task = bar.add_task("Folding", total=None)

        def show(step: turnfold.Progress) -> None:
            title = "Folding" if step.depth == 0 else f"Condensing to depth {step.depth}"
            bar.update(task, description=title, completed=step.turns_compacted, total=step.turns_to_compact)

        yield show


@contextmanager
def refolding() -> Iterator[turnfold.refolding.OnRefoldProgress]:
    with _bar("summaries") as bar:
        task = bar.add_task("Making again", total=None)

        def show(step: turnfold.RefoldProgress) -> None:
            title = f"Making again, depth {step.depth}"
            bar.update(task, description=title, completed=step.summaries_done, total=step.summaries_to_do)

        yield show


@contextmanager
def embedding(session: SessionRecord) -> Iterator[turnfold.embedding.OnEmbedProgress]:
    with _bar("turns") as bar:
        task = bar.add_task(f"Embedding {plain(session.id)}", total=session.last_position)
        yield lambda stats: bar.update(task, completed=stats["turns_embedded"])


@contextmanager
def checking() -> Iterator[turnfold.checking.OnCheckProgress]:
    with _bar("turns") as bar:
        task = bar.add_task("Checking", total=None)

        def show(session: SessionRecord, position: int) -> None:
            bar.update(
                task, description=f"Checking {plain(session.id)}", completed=position, total=session.last_position
            )

        yield show


def _bar(unit: str) -> Progress:
    title = TextColumn("{task.description}", markup=False)  # a session's id may look like markup
    columns = (SpinnerColumn(), title, BarColumn(), MofNCompleteColumn(), TextColumn(unit))
    err = Console(stderr=True)
    return Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
