"""Text from outside steers neither terminal nor page; pieces of an episode lose no id and tear no character."""

from __future__ import annotations

import io
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.errors import OrlError
from orl_core.messages import Action
from orl_core.text import visible
from orl_core.trajectory import Generation, Turn
from orl_launcher import cli, main
from orl_launcher.view.episode import Role, pieces_of
from orl_launcher.view.tables import plain_table
from orl_launcher.view.terminal import Terminal
from rich.progress import Progress
from rich.text import Text

from tests.launcher.synthetic import CONTROLS, make_tokenizer

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


def unfit(text: str) -> list[str]:
    return [character for character in text if character not in "\n\t" and not character.isprintable()]


def printed(*renderables: object) -> str:
    written = io.StringIO()
    terminal = Terminal(file=written, highlight=False, markup=False, emoji=False, width=200)
    for one in renderables:
        terminal.print(one)
    return written.getvalue()


def test_whatever_is_printed_is_made_visible():
    table = plain_table("environment", HOSTILE, title=f"title {HOSTILE}")
    table.add_row(Text(f"row {HOSTILE}"), f"cell {HOSTILE}")
    text = printed(f"[bold]line[/bold] {HOSTILE}", Text(f"text {HOSTILE}", style="red"), table)
    assert unfit(text) == []
    assert "[bold]line[/bold]" in text
    assert text.count("\u241b") >= 5


def test_colours_and_progress_of_our_own_stay():
    written = io.StringIO()
    terminal = Terminal(file=written, force_terminal=True, color_system="standard", width=80)
    terminal.print(Text(f"green {HOSTILE}", style="green"))
    with Progress(console=terminal) as progress:
        progress.update(progress.add_task("work", total=2), completed=2)
    assert "\x1b[32m" in written.getvalue()
    assert "\x1b]0;owned" not in written.getvalue()
    assert "100%" in written.getvalue()


def test_an_error_on_the_last_line_is_made_visible(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fail(*_: object) -> int:
        raise OrlError(f"environment {HOSTILE} failed")

    monkeypatch.setattr("orl_launcher.commands.show.run", fail)
    assert main.main(["show", "nowhere"]) == cli.EXIT_FAILED
    assert unfit(capsys.readouterr().err) == []


@pytest.mark.parametrize("command", ["rollout", "doctor"])
def test_engine_address_with_login_is_refused_and_not_shown(command: str, capsys: pytest.CaptureFixture[str]):
    words = [command, "--config", "nowhere.yaml", "--engine", "http://user:hush-hush@127.0.0.1:30000"]
    assert main.main(words) == cli.EXIT_USAGE
    said = capsys.readouterr()
    assert "--engine" in said.err
    assert "hush" not in said.err + said.out


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
