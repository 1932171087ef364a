"""Turns as rows, and rows as turns, value by value: a session's thousands pass through here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Dialect

from turnfold.records import Turn
from turnfold.sql.tables import turns

__all__ = ["driver_rows", "turns_of"]


def driver_rows(new: Sequence[Turn], dialect: Dialect) -> Iterator[tuple[Any, ...]]:
    """The turns as rows of values that the driver takes."""
    values = attrgetter(*turns.columns.keys())
    processors = [column.type.dialect_impl(dialect).bind_processor(dialect) for column in turns.columns]
    needed = [(index, processor) for index, processor in enumerate(processors) if processor is not None]
    for turn in new:
        row = list(values(turn))
        for index, process in needed:
            if row[index] is not None:
                row[index] = process(row[index])
        yield tuple(row)


def turns_of(rows: Iterable[Any]) -> list[Turn]:
    """The turns of rows with all columns of the table. Named one by one: `Turn(**row)` takes twice the time."""
    return [
        Turn(
            role=role,
            content=content,
            id=id,
            name=name,
            tool_calls=tool_calls,
            tool_call_id=tool_call_id,
            pinned=pinned,
            payload=payload,
            created_at=created_at,
            attributes=attributes,
            session_id=session_id,
            position=position,
            token_count=token_count,
            counter=counter,
        )
        for (
            session_id,
            position,
            id,
            role,
            content,
            name,
            tool_calls,
            tool_call_id,
            pinned,
            payload,
            token_count,
            counter,
            created_at,
            attributes,
        ) in rows
    ]
