"""Pieces: no id is lost, no character is torn, nothing that steers a terminal or a page gets through."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from orl_core.messages import Action
from orl_core.text import visible
from orl_core.trajectory import Generation, Turn
from orl_launcher.view.pieces import Role, pieces_of

from tests.launcher.synthetic import CONTROLS, make_tokenizer

TOKENIZER = make_tokenizer()
TEXT = st.text(st.one_of(st.characters(exclude_categories=("Cs",)), st.sampled_from("é漢😀\u200d\x1b\u202e\n")))


def turn_of(shown: str, said: str) -> Turn:
    ids = tuple(TOKENIZER.encode(said).ids)
    generation = Generation(
        token_ids=ids, logprobs=tuple(-0.1 * place for place in range(len(ids))), finish_reason="stop"
    )
    return Turn(observation=tuple(TOKENIZER.encode(shown).ids), generations=(generation,), action=Action())


@given(TEXT, TEXT, st.booleans())
def test_pieces_cover_all_ids_in_order_and_spell_the_text(shown: str, said: str, trains: bool) -> None:
    turn = turn_of(shown + CONTROLS[0], said + CONTROLS[1])
    pieces = pieces_of(turn, TOKENIZER, [int(trains)] * len(turn.action_ids))
    sampled = [piece for piece in pieces if piece.role is not Role.SHOWN]
    assert [token for piece in pieces if piece.role is Role.SHOWN for token in piece.ids] == list(turn.observation)
    assert [token for piece in sampled for token in piece.ids] == list(turn.action_ids)
    assert [logprob for piece in sampled for logprob in piece.logprobs] == list(turn.generations[0].logprobs)
    assert {piece.role for piece in sampled} == {Role.TRAINED if trains else Role.UNTRAINED}
    if "\ufffd" not in shown + said:
        assert "".join(piece.text for piece in pieces) == visible(shown + CONTROLS[0] + said + CONTROLS[1])


@given(st.lists(st.integers(0, 255 + len(CONTROLS)), max_size=40))
def test_any_ids_whatever_have_pieces(ids: list[int]) -> None:
    turn = Turn(observation=tuple(ids), generations=(), action=Action())
    pieces = pieces_of(turn, TOKENIZER, [])
    assert [token for piece in pieces for token in piece.ids] == ids
    assert all(piece.text for piece in pieces)


def test_a_character_of_several_ids_is_one_piece() -> None:
    (piece,) = pieces_of(turn_of("😀", ""), TOKENIZER, [])
    assert (piece.text, len(piece.ids)) == ("😀", 4)


def test_an_id_outside_the_vocabulary_is_shown_by_its_number() -> None:
    turn = Turn(observation=(65, 99_999), generations=(), action=Action())
    assert pieces_of(turn, TOKENIZER, [])[-1].text == "\u27e899999\u27e9"


@given(st.text(st.characters()))
def test_what_is_visible_steers_nothing_and_can_be_written(text: str) -> None:
    shown = visible(text)
    shown.encode("utf-8")
    assert not any(
        unicodedata.category(character) in ("Cc", "Cf", "Cs") for character in shown if character not in "\n\t"
    )
    assert visible(shown) == shown


def test_harmless_text_is_left_alone() -> None:
    text = 'x = {"a": [1, 2]}\n\tnaïve 漢字 😀 \u00a0'
    assert visible(text) == text
