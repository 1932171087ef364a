"""The built-in offline model: summarizes by picking sentences, the same ones every time, and downloads nothing.

Sentences that carry decisions, names, numbers, paths, errors and questions are preferred, and those close to what the
whole source is about (the centroid of its words, weighted by tf-idf). They are picked in rounds, one from every stretch
of the source, so that its beginning, middle and end are all heard; one that repeats what is picked is passed over.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnfold.models.prompt import Prompt
from turnfold.tokens import EstimatingCounter, TokenCounter

__all__ = ["extract", "extractive", "shortened"]

DEFAULT_TARGET_TOKENS = 1_200


def extractive(prompt: str) -> str:
    """The offline model, `prompt -> text`: what to summarize and how far it takes from a `Prompt`; of a plain text it
    keeps at most 1,200 tokens."""
    if isinstance(prompt, Prompt):
        return extract(prompt.source, prompt.target_tokens)
    return extract(prompt, DEFAULT_TARGET_TOKENS)


extractive.name = "extractive"  # type: ignore[attr-defined]


def extract(source: str, target_tokens: int, token_counter: TokenCounter | None = None) -> str:
    """The most telling sentences of `source`, in their order, in at most `target_tokens` tokens (at least 1); where
    not one fits, the beginning of the best. Empty only where the source has no word."""
    counter = token_counter or EstimatingCounter()
    sentences = list(_sentences(source))
    if not sentences:
        return ""
    scores = _scores(sentences)
    picked = _pick(sentences, scores, target_tokens, counter)
    if not picked:
        best = max(range(len(sentences)), key=lambda index: (scores[index], -index))
        return shortened(sentences[best].labelled, target_tokens, counter)
    return shortened(_joined([sentences[index] for index in sorted(picked)]), target_tokens, counter)


def shortened(text: str, max_tokens: int, counter: TokenCounter) -> str:
    """`text`, or its beginning and an ellipsis in at most `max_tokens` tokens (at least 1)."""
    if counter.count(text) <= max_tokens:
        return text
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if counter.count(text[:middle].rstrip() + "…") <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return text[:low].rstrip() + "…"


@dataclass(frozen=True, slots=True)
class _Sentence:
    speaker: str
    text: str
    words: frozenset[str]

    @property
    def labelled(self) -> str:
        return f"{self.speaker}: {self.text}" if self.speaker else self.text


_SPEAKER = re.compile(
    r"(?P<role>(?:user|assistant|tool|system|developer)(?: [^:\n]{1,64}?)??)"
    r"(?: \d\d:\d\d)?(?P<calls> calls [^:\n]{1,128})?: ?"
)
_DATE_LINE = re.compile(r"— [0-9-]{10}, times in UTC —$")
_END = re.compile(r"(?<=[.!?…])[\"')\]]*\s+|(?<=[。！？])|\s*\n+\s*")
_WORD = re.compile(r"[^\W_]{2,}")
_LONGEST_SENTENCE = 400
_PIECE = re.compile(r".{1,300}(?:\s|$)|.{300}", re.DOTALL)

_SIGNS = tuple(
    (re.compile(pattern, flags), weight)
    for pattern, flags, weight in (
        (
            r"\b(?:decid|chose|choose|agree|conclu|instead|because|must|should not|never|always|switch|revert|rather"
            r"|turns out|root cause|fixed|solved|promis|deadline|entschi|beschloss|решил|décid|decidi)"
            r"|决定|決定|결정",
            re.IGNORECASE,
            1.0,
        ),
        (
            r"\b(?:error|exception|fail|traceback|refused|timeout|timed out|broken|crash|fehler|ошибк)"
            r"|错误|エラー|오류",
            re.IGNORECASE,
            0.8,
        ),
        (r"[\w.~]/[\w.]|(?:^|\s)/\w|\b\w+\.(?:py|js|ts|go|rs|sql|json|ya?ml|toml|md|txt|csv|log)\b", 0, 0.6),
        (r"\d", 0, 0.6),
        (r"\b[A-Z][\w-]+ [A-Z][\w-]+|(?<=[a-z,] )[A-Z]\w+|\b\w+_\w+\b|`[^`]+`", 0, 0.5),
        (r"[?？]", 0, 0.3),
        (r"\b(?:todo|next step|open question|remember|important|note that)\b", re.IGNORECASE, 0.7),
    )
)


def _sentences(source: str) -> Iterator[_Sentence]:
    speaker = ""
    for line in source.split("\n"):
        if _DATE_LINE.match(line):
            continue
        match = _SPEAKER.match(line)
        if match:
            speaker, line = match["role"] + (match["calls"] or ""), line[match.end() :]
        for text in _END.split(line):
            pieces = _PIECE.findall(text) if len(text) > _LONGEST_SENTENCE else [text]
            for piece in map(str.strip, pieces):
                if any(map(str.isalnum, piece)):
                    yield _Sentence(speaker, piece, frozenset(map(str.lower, _WORD.findall(piece))))


def _scores(sentences: Sequence[_Sentence]) -> list[float]:
    """How telling each sentence is: its nearness to the centroid, at most 1, and the weights of the signs it bears."""
    frequency = Counter(word for sentence in sentences for word in sentence.words)
    weight = {word: count * math.log(1 + len(sentences) / count) for word, count in frequency.items()}
    nearness = [
        math.fsum(weight[word] for word in sentence.words) / (4 + len(sentence.words)) for sentence in sentences
    ]
    most = max(nearness) or 1.0
    return [
        (near / most + math.fsum(weight for sign, weight in _SIGNS if sign.search(sentence.text))) * _trust(sentence)
        for near, sentence in zip(nearness, sentences, strict=True)
    ]


def _trust(sentence: _Sentence) -> float:
    """What people and the assistant say tells more than what went into a tool or came out of it."""
    return 0.5 if sentence.speaker.startswith("tool") or " calls " in sentence.speaker else 1.0


def _pick(
    sentences: Sequence[_Sentence], scores: Sequence[float], target_tokens: int, counter: TokenCounter
) -> set[int]:
    costs = [counter.count(sentence.labelled) + 1 for sentence in sentences]
    typical = max(1, sum(costs) // len(costs))
    stretches = max(1, min(len(sentences), target_tokens // typical))
    ranked = [
        sorted(
            range(len(sentences) * stretch // stretches, len(sentences) * (stretch + 1) // stretches),
            key=lambda index: (-scores[index], index),
        )
        for stretch in range(stretches)
    ]
    picked: set[int] = set()
    heard: set[str] = set()
    for turn in range(max(map(len, ranked))):
        # Counted anew: a speaker is named once for all that follows, and each cost holds the name.
        left = target_tokens - counter.count(_joined([sentences[index] for index in sorted(picked)]))
        if left < typical // 2:
            break
        round_ = sorted((stretch[turn] for stretch in ranked if turn < len(stretch)), key=lambda i: (-scores[i], i))
        for index in round_:
            words = sentences[index].words
            is_repeated = bool(words) and len(words & heard) > 0.8 * len(words)
            if costs[index] <= left and not is_repeated:
                picked.add(index)
                heard |= words
                left -= costs[index]
    return picked


def _joined(sentences: Sequence[_Sentence]) -> str:
    lines: list[str] = []
    speaker: str | None = None
    for sentence in sentences:
        if sentence.speaker == speaker and lines:
            lines[-1] += f" {sentence.text}"
        else:
            lines.append(sentence.labelled)
        speaker = sentence.speaker
    return "\n".join(lines)
