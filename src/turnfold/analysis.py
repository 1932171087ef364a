"""Turns a text into the terms that search compares: the same for what is written and for what is asked.

Letters lose case and diacritics, English words their endings, and the most frequent English words are left out where
they say nothing. Chinese, Japanese and Korean, which put no blanks between words, are cut into overlapping pairs of
characters. Terms consist of ASCII letters and digits only, so that no database takes any of them apart.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain

from turnfold.content import readable_calls, readable_text
from turnfold.records import Turn

__all__ = ["matches_in", "query_terms", "searched_text", "terms_of", "turn_terms"]

MOST_CHARACTERS = 200_000
"""What of a text is indexed: a log of megabytes would fill the index and is found by its beginning."""

MOST_TERMS = 10_000
"""Distinct terms of one text that are indexed; PostgreSQL holds 1 MB of them."""

MOST_QUERY_TERMS = 64

LONGEST_WORD = 48
"""Longer runs of letters and digits are data, such as base64."""

_STOP_WORDS = frozenset(
    """a about after again all also am an and any are as at be been before being but by can could did do does doing done
    down during for from had has have having he her here him his how i if in into is it its just may me might must my no
    nor not of off on or our out over s she should so some t than that the their them then there these they this those
    to too up us very was we were what when where which who whom whose why will with would you your ll re ve m
    d""".split()
)

_CJK = "\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_ASCII_WORD = re.compile("[a-z0-9]+")
_WORD = re.compile(rf"[a-z0-9]+|[{_CJK}]+|[^\W_a-z0-9{_CJK}]+")
_POSSESSIVE = re.compile(r"['’]s\b")


def terms_of(text: str) -> list[str]:
    """The distinct terms of a text, in order of their first place."""
    readable = _readable(text)
    words = dict.fromkeys((_ASCII_WORD if readable.isascii() else _WORD).findall(readable))
    return list(dict.fromkeys(chain.from_iterable(map(_terms, words))))[:MOST_TERMS]


def turn_terms(turn: Turn) -> list[str]:
    """The terms of what a turn says, of who says it, and of the calls that it makes."""
    return terms_of(f"{turn.name}\n{searched_text(turn)}" if turn.name else searched_text(turn))


def searched_text(turn: Turn) -> str:
    """What of a turn is searched: its words, and the calls that it makes."""
    calls = (" ".join(call) for call in readable_calls(turn))
    return "\n".join(filter(None, (readable_text(turn.content), *calls)))


def query_terms(query: str) -> list[str]:
    """The terms of a question, the first 64: a longer one is no question any more."""
    return terms_of(query)[:MOST_QUERY_TERMS]


def matches_in(text: str, terms: frozenset[str]) -> list[tuple[int, int]]:
    """Where words of `text` stand that have one of the terms, or pairs of characters where words are not parted."""
    places: list[tuple[int, int]] = []
    for word in _WORD.finditer(_readable(text)):
        found = _terms(word[0])
        if len(found) > 1:
            starts = (word.start() + index for index, term in enumerate(found) if term in terms)
            places += _joined((start, start + 2) for start in starts)
        elif not terms.isdisjoint(found):
            places.append(word.span())
    return places


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in places:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _readable(text: str) -> str:
    """What of a text is indexed, without case, diacritics and English possessives, character for character."""
    text = text[:MOST_CHARACTERS]
    folded = text.lower() if text.isascii() else _folded(text)
    if "'" in folded or "’" in folded:
        folded = _POSSESSIVE.sub("  ", folded)
    return folded


def _folded(text: str) -> str:
    """The text without case and diacritics, character for character, so that places stay what they are."""
    return "".join(map(_folded_character, text))


@lru_cache(maxsize=1 << 16)
def _folded_character(character: str) -> str:
    if "\uac00" <= character <= "\ud7af":
        return character
    folded = unicodedata.normalize("NFKD", character.lower())
    return folded[0] if folded else character


@lru_cache(maxsize=1 << 16)
def _terms(word: str) -> tuple[str, ...]:
    if len(word) > LONGEST_WORD or word in _STOP_WORDS:
        return ()
    if word.isascii():
        return (f"w{_stem(word)}",)
    if re.match(f"[{_CJK}]", word):
        pairs = [word[start : start + 2] for start in range(max(1, len(word) - 1))]
        return tuple(f"u{pair.encode().hex()}" for pair in pairs)
    return (f"u{word.encode('utf-8', 'replace').hex()}",)


def _stem(word: str) -> str:
    """An English word without its commonest endings (after Porter, "An algorithm for suffix stripping", 1980, in
    its simplest steps)."""
    word = _singular(word)
    for ending in ("ing", "ed"):
        stem = word.removesuffix(ending)
        if stem != word and len(stem) >= 3 and re.search("[aeiouy]", stem):
            is_doubled = len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "lsz"
            word = stem[:-1] if is_doubled else stem
            break
    if len(word) > 4:
        word = word.removesuffix("ly")
    if len(word) > 3:
        word = word.removesuffix("e")
    return f"{word[:-1]}i" if len(word) > 3 and word.endswith("y") else word


def _singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    if len(word) > 4 and word.endswith(("sses", "shes", "ches", "xes", "zes")):
        return word[:-2]
    is_plural = len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is"))
    return word[:-1] if is_plural else word
