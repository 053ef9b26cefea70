"""Text from outside steers no terminal and is no markup, whatever prints it."""

from __future__ import annotations

import io

import pytest
from orl_core.errors import OrlError
from orl_launcher import cli, main
from orl_launcher.view.tables import metrics_table, pass_at_k_table, plain_table
from orl_launcher.view.terminal import Terminal
from rich.progress import Progress
from rich.text import Text

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


def test_pass_at_1_alone_has_no_table_beside_success():
    metrics = {
        "a/b/rollouts": 4.0,
        "a/b/pass@1": 0.5,
        "a/b/tasks": 4.0,
        "a/b/judged": 4.0,
        "a/b/success": 0.5,
        "a/b/valid_calls": 1.0,
    }
    assert pass_at_k_table(metrics).row_count == 0
    assert pass_at_k_table({**metrics, "a/b/pass@2": 0.75}).row_count == 1
    assert "100\u00a0%" in printed(metrics_table(metrics))


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
