"""From characters to ids: exact for any ids, canonical or not, and every id decoded a few times, not once for a place.

The ids are random: most of them spell characters by halves, so that no decoder adds up over ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.render.calls import Places

from tests.kit.tokenizers import renderer_of, tokenizer

BY_BYTES = tokenizer("qwen2_5")
BYTES = {text: BY_BYTES.encode([text])[0] for text in ("😀", "漢", "\u3000", "</think>", "<think>", "x")}
some_ids = st.lists(
    st.integers(0, 300) | st.sampled_from([token for ids in BYTES.values() for token in ids]) | st.just(10**6),
    max_size=24,
)


def plain(decode: object, ids: Sequence[int], text: str, character: int) -> int:
    """The definition: the fewest ids that say so many characters, the last of them whole."""
    if character >= len(text):
        return len(ids)
    return next(size for size in range(len(ids) + 1) if decode(ids[:size]).startswith(text[:character]))  # type: ignore[operator]


@given(ids=some_ids, asked=st.lists(st.integers(0, 60), max_size=6).map(sorted))
def test_places_are_what_decoding_every_beginning_finds(ids: list[int], asked: list[int]) -> None:
    decode = BY_BYTES.decode
    text = decode(ids)
    places = Places(decode, ids, text)
    for character in asked:
        assert places.place(character) == plain(decode, ids, text, character)


def counted(size: int, unit: str) -> int:
    """Count the ids that are decoded to find every place of a text of `size` units, each with a place behind it."""
    decode = BY_BYTES.decode
    ids = BY_BYTES.encode([unit * size])[0]
    spent = 0

    def counting(ids: Sequence[int]) -> str:
        nonlocal spent
        spent += len(ids)
        return decode(ids)

    text = decode(ids)
    places = Places(counting, ids, text)
    for place in range(0, len(text) + 1, len(unit)):
        places.place(place)
    return spent


@pytest.mark.parametrize("unit", ["x", "<think>a</think>", "漢", "😀<think>", "a long thought of many words </think>"])
def test_twice_the_places_cost_twice_as_much(unit: str) -> None:
    assert counted(400, unit) < 2.5 * counted(200, unit)


def test_split_character_stays_in_the_part_that_it_ends() -> None:
    """Qwen2.5 has no token for `<think>`: its neighbour may be three ids of one character."""
    tok, renderer = BY_BYTES, renderer_of("qwen2_5")
    assert len(BYTES["😀"]) > 1
    said = [*BYTES["😀"], *BYTES["<think>"], *BYTES["😀"], *BYTES["</think>"], *BYTES["\u3000"], *BYTES["x"]]
    _, (span,) = renderer.read(said)
    assert tok.decode(said[: span.start]) == "😀"
    assert tok.decode(said[span.start : span.end]) == "<think>😀</think>"
    unclosed = said[: -len([*BYTES["</think>"], *BYTES["\u3000"], *BYTES["x"]])]
    _, (span,) = renderer.read(unclosed)
    assert (tok.decode(unclosed[: span.start]), span.end) == ("😀", len(unclosed))
