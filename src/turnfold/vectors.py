"""Embeddings, whoever makes them: an embedder is any callable that takes texts and gives a list of numbers for each.

What it gives is checked here, and brought to length 1, so that the inner product of two vectors is the cosine of the
angle between them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from turnfold.errors import InvalidAnswer, InvalidArgument

__all__ = ["MOST_CHARACTERS", "Embedder", "Embedding", "embedder_name", "no_embedder", "unit_vectors"]

Embedder = Callable[[Sequence[str]], Any]
"""`texts -> vectors`, one for each text and all of one length. Its `name`, or else that of the function, tells its
vectors from those of others: give it the name of the model."""

MOST_CHARACTERS = 8_000
"""What of a text is embedded: providers refuse more than about 8,000 tokens, and no vector holds more."""


class Embedding(NamedTuple):
    """The vector of a turn (then `ref` is "") or of the summary `ref`, and the text that it was made from."""

    position: int
    ref: str
    text: str
    vector: tuple[float, ...]


def embedder_name(embedder: Embedder | None) -> str:
    """The name under which its vectors are kept; "" where there is no embedder."""
    if embedder is None:
        return ""
    return str(getattr(embedder, "name", None) or getattr(embedder, "__qualname__", type(embedder).__qualname__))


def no_embedder() -> InvalidArgument:
    """The error of a store that has none."""
    return InvalidArgument("this store has no embedder; give it one: SqlRepository(engine, embedder=…)")


def unit_vectors(given: Any, count: int, name: str) -> list[tuple[float, ...]]:
    """What an embedder gave for `count` texts, each vector at length 1 (one of zeros stays).

    Raises `InvalidAnswer` for another number of vectors, for vectors of different lengths, and for what is no number.
    """
    if inspect.iscoroutine(given):
        given.close()
        raise InvalidAnswer(f"the embedder {name} is asynchronous; use turnfold.aio, or its synchronous twin here")
    try:
        vectors = [tuple(map(float, vector)) for vector in given]
    except (TypeError, ValueError) as error:
        raise InvalidAnswer(f"the embedder {name} must return a list of numbers for each text: {error}") from error
    if len(vectors) != count:
        raise InvalidAnswer(f"the embedder {name} returned {len(vectors)} vectors for {count} texts")
    if len({len(vector) for vector in vectors}) > 1 or not all(vectors):
        raise InvalidAnswer(f"the embedder {name} returned empty vectors, or vectors of different lengths")
    return [_unit(vector, name) for vector in vectors]


def _unit(vector: tuple[float, ...], name: str) -> tuple[float, ...]:
    length = math.hypot(*vector)
    if not math.isfinite(length):
        raise InvalidAnswer(f"the embedder {name} returned a vector with NaN or infinity in it")
    return tuple(number / length for number in vector) if length else vector
