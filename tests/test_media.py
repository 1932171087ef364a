"""Pictures, sounds and documents: what they cost by the formulas of their providers, and their description."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from turnfold import media


def data_url(head: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64," + base64.b64encode(head + bytes(64)).decode()


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big")


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + width.to_bytes(2, "little") + height.to_bytes(2, "little")


def jpeg(width: int, height: int) -> bytes:
    comment = b"\xff\xfe" + (302).to_bytes(2, "big") + bytes(300)
    frame = b"\xff\xc2\0\x11\x08" + height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return b"\xff\xd8" + comment + frame


def webp(width: int, height: int) -> bytes:
    return (
        b"RIFF\0\0\0\0WEBPVP8X\n\0\0\0\0\0\0\0" + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    )


def webp_lossy(width: int, height: int) -> bytes:
    head = b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a"
    return head + width.to_bytes(2, "little") + height.to_bytes(2, "little")


def openai(url: str, **detail: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **detail}}


def anthropic(head: bytes) -> dict[str, Any]:
    data = base64.b64encode(head + bytes(64)).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}


@pytest.mark.parametrize("make", [png, gif, jpeg, webp, webp_lossy], ids=lambda make: make.__name__)
def test_the_size_is_read_from_the_header(make: Any) -> None:
    assert media.describe(openai(data_url(make(640, 480)))) == "[image 640×480]"


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [(512, 512, 255), (1024, 1024, 765), (2048, 4096, 1105), (100, 100, 255), (8000, 100, 765)],
)
def test_openai_counts_tiles(width: int, height: int, tokens: int) -> None:
    assert media.tokens(openai(data_url(png(width, height)))) == tokens


def test_openai_counts_low_detail_at_a_flat_price() -> None:
    assert media.tokens(openai(data_url(png(4000, 4000)), detail="low")) == 85
    assert media.tokens({"type": "input_image", "image_url": data_url(png(4000, 4000)), "detail": "low"}) == 85


@pytest.mark.parametrize(("width", "height", "tokens"), [(200, 200, 54), (1000, 1000, 1334), (4000, 3000, 1600)])
def test_anthropic_counts_area(width: int, height: int, tokens: int) -> None:
    assert media.tokens(anthropic(png(width, height))) == tokens


@pytest.mark.parametrize(
    "url",
    ["https://example.org/a.png", "data:image/png;base64,", "data:image/png;base64,????", "data:image/png;base64,iVBO"],
)
def test_a_picture_of_unknown_size_counts_as_one_of_1024_pixels(url: str) -> None:
    assert media.tokens(openai(url)) == 765


def test_a_picture_behind_a_url_is_described_by_it() -> None:
    assert media.describe(openai("https://example.org/a.png")) == "[image https://example.org/a.png]"


def test_sound_costs_ten_tokens_a_second() -> None:
    rate = 32_000
    head = b"RIFF\0\0\0\0WAVEfmt " + bytes(12) + rate.to_bytes(4, "little") + bytes(12)
    data = base64.b64encode(head + bytes(30 * rate)).decode()
    part = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    assert media.tokens(part) in (300, 301)
    assert media.describe(part) == "[audio, 30 s]"


def test_documents_cost_by_the_page() -> None:
    data = base64.b64encode(bytes(120_000)).decode()
    part = {"type": "file", "file": {"filename": "plan.pdf", "file_data": f"data:application/pdf;base64,{data}"}}
    assert media.tokens(part) == 3 * 3_000
    assert media.describe(part) == "[document plan.pdf]"
    assert media.tokens({"type": "file", "file": {"file_id": "file-1"}}) == 3_000


def test_a_document_of_plain_text_is_text() -> None:
    part = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    assert media.tokens(part) is None
    assert media.describe(part) is None


@pytest.mark.parametrize("part", [{"type": "text", "text": "x"}, {}, {"type": None}, {"type": "video"}])
def test_other_parts_are_no_media(part: dict[str, Any]) -> None:
    assert media.tokens(part) is None
    assert media.describe(part) is None


@pytest.mark.parametrize("head", [b"\xff\xd8", b"\xff\xd8\xff\xc0", b"RIFF\0\0\0\0WEBPVP8X", png(0, 0)])
def test_a_broken_header_is_a_picture_of_unknown_size(head: bytes) -> None:
    assert (
        media.tokens(
            {"type": "image_url", "image_url": {"url": "data:image/x;base64," + base64.b64encode(head).decode()}}
        )
        == 765
    )
