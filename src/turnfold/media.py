"""What pictures, sounds and documents in a message cost, and how they are described in a word.

The formulas are the providers' own: OpenAI counts pictures in tiles of 512 pixels ("Images and vision": 85 tokens and
170 per tile; 85 at low detail), Anthropic by area ("Vision": width × height / 750 after scaling the long edge to
1,568); sound takes 10 tokens a second (OpenAI, "Audio tokens") and a PDF page up to 3,000 (Anthropic, "PDF support").
Where a size cannot be known, as behind a URL, a picture of 1,024 × 1,024 is assumed.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["describe", "tokens"]

_UNKNOWN_SIZE = (1024, 1024)
_TOKENS_PER_SECOND = 10
_COMPRESSED_SOUND_BYTES_PER_SECOND = 16_000
_TOKENS_PER_PAGE = 3_000
_BYTES_PER_PAGE = 50_000
_HEADER_BYTES = 1 << 16

_PICTURES = frozenset({"image", "image_url", "input_image"})
_SOUNDS = frozenset({"input_audio", "audio"})
_DOCUMENTS = frozenset({"file", "input_file", "document"})


def tokens(part: Mapping[str, Any]) -> int | None:
    """The tokens of a part that is a picture, a sound or a document; None for any other."""
    kind = _kind(part)
    if kind in _PICTURES:
        return _picture_tokens(part)
    if kind in _SOUNDS:
        return math.ceil(_seconds(part) * _TOKENS_PER_SECOND)
    if kind in _DOCUMENTS and not _plain_document(part):
        return math.ceil(_byte_count(_encoded(part)) / _BYTES_PER_PAGE or 1) * _TOKENS_PER_PAGE
    return None


def describe(part: Mapping[str, Any]) -> str | None:
    """A short description such as `[image 800×600]` of a picture, a sound or a document; None for any other part."""
    kind = _kind(part)
    if kind in _PICTURES:
        size = _size(part)
        shown = f" {size[0]}×{size[1]}" if size else ""
        url = _url(part)
        return f"[image{shown}{' ' + url if url else ''}]"
    if kind in _SOUNDS:
        return f"[audio, {_seconds(part):.0f} s]"
    if kind in _DOCUMENTS and not _plain_document(part):
        name = _first_text(part, "filename", "title", "file_id") or _url(part) or "without a name"
        return f"[document {name}]"
    return None


def _kind(part: Mapping[str, Any]) -> str:
    kind = part.get("type")
    return kind if isinstance(kind, str) else ""


def _picture_tokens(part: Mapping[str, Any]) -> int:
    width, height = _size(part) or _UNKNOWN_SIZE
    if part.get("type") == "image":
        scale = min(1.0, 1568 / max(width, height))
        return min(1600, math.ceil(width * scale * height * scale / 750))
    inner = part.get("image_url")
    detail = inner.get("detail") if isinstance(inner, Mapping) else part.get("detail")
    if detail == "low":
        return 85
    scale = min(1.0, 2048 / max(width, height))
    scale *= min(1.0, 768 / (min(width, height) * scale))
    return 85 + 170 * math.ceil(width * scale / 512) * math.ceil(height * scale / 512)


def _inner(part: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("source", "image_url", "input_audio", "audio", "file"):
        value = part.get(key)
        if isinstance(value, Mapping):
            return value
    return part


def _first_text(part: Mapping[str, Any], *keys: str) -> str | None:
    for holder in (part, _inner(part)):
        for key in keys:
            if isinstance(holder.get(key), str):
                return str(holder[key])
    return None


def _url(part: Mapping[str, Any]) -> str | None:
    url = _first_text(part, "url", "image_url", "file_url")
    return None if url is None or url.startswith("data:") else url


def _encoded(part: Mapping[str, Any]) -> str:
    """The base64 text of the part, without the head of its data URL; empty where the part only points to it."""
    text = _first_text(part, "data", "url", "image_url", "file_data")
    if text is None:
        return ""
    if text.startswith("data:"):
        return text.partition(",")[2]
    return "" if "://" in text[:16] else text


def _plain_document(part: Mapping[str, Any]) -> bool:
    return _inner(part).get("type") in ("text", "content")


def _byte_count(encoded: str) -> int:
    return len(encoded) * 3 // 4


def _seconds(part: Mapping[str, Any]) -> float:
    encoded = _encoded(part)
    head = _decoded_head(encoded, 64)
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        rate = int.from_bytes(head[28:32], "little")
        return max(0, _byte_count(encoded) - 44) / rate if rate else 0.0
    return _byte_count(encoded) / _COMPRESSED_SOUND_BYTES_PER_SECOND


def _decoded_head(encoded: str, length: int) -> bytes:
    head = re.sub(r"\s", "", encoded[: length * 2])
    try:
        return base64.b64decode(head[: len(head) // 4 * 4])[:length]
    except (binascii.Error, ValueError):
        return b""


def _size(part: Mapping[str, Any]) -> tuple[int, int] | None:
    head = _decoded_head(_encoded(part), _HEADER_BYTES)
    if len(head) < 30:
        return None
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        size = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    elif head[:4] == b"GIF8":
        size = int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    elif head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X":
        size = 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    elif head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8 ":
        size = int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    elif head[:2] == b"\xff\xd8":
        size = _jpeg_size(head)
    else:
        return None
    return size if min(size) > 0 else None


def _jpeg_size(head: bytes) -> tuple[int, int]:
    """The size in the frame header, which follows segments that each tell their own length."""
    at = 2
    while at + 9 < len(head) and head[at] == 0xFF:
        if 0xC0 <= head[at + 1] <= 0xCF and head[at + 1] not in (0xC4, 0xC8, 0xCC):
            return int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
        at += 2 + int.from_bytes(head[at + 2 : at + 4], "big")
    return 0, 0
