"""`orl show`: a run, a journal, one episode, the page of episodes, and one JSON object that its schema describes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import starmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.messages import Action, FailureKind, ParseFailure, ToolResult, text_message
from orl_launcher.main import main
from orl_launcher.reports import row_of
from orl_launcher.view.episode import episode_rows, load_decoder
from orl_launcher.view.progress import following
from orl_launcher.view.report import write_report
from orl_launcher.view.tables import BARS, episode_view, episodes_table, sparkline
from orl_launcher.view.wording import duration, number
from orl_rollout.episodes.journal import Entry, encode_entry, frame, read_journal
from orl_rollout.run_folder.record import Recovery, add_recovery, read_record
from rich.console import Console

from tests.kit.configs import LOCAL
from tests.kit.pages import HOSTILE, page_of
from tests.launcher.outputs import printed
from tests.launcher.synthetic import JOURNAL, make_run, make_tokenizer, make_trajectory

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "demo")


def shown(capsys: Capture, *argv: str) -> str:
    assert main(["show", *argv]) == 0
    return capsys.readouterr().out


def test_a_run_shows_change_curves_and_episodes(capsys: Capture, run: Path) -> None:
    page = shown(capsys, str(run))
    for told in (
        f"run {run}",
        "99\u00a0% → 99\u00a0%",
        "held-out  ▁▆█",
        "GuessNumber/test/",
        "0 eval",
        "won",
    ):
        assert told in page


def test_restarts_for_lack_of_memory_are_shown(capsys: Capture, run: Path) -> None:
    made = Recovery(attempt=1, option="--max-tokens-per-gpu", before="8192", after="4096", checkpoint=20)
    add_recovery(run, made)
    assert made.text in shown(capsys, str(run))
    assert made.text in write_report(run).read_text(encoding="utf-8")


def test_one_episode(capsys: Capture, run: Path) -> None:
    page = shown(capsys, str(run), "--episode", "5")
    for told in (
        "episode 5  won",
        "turn 1: 74 ids shown, 51 sampled",
        "calls guess(number=22)",
        "ends the episode",
    ):
        assert told in page
    assert shown(capsys, str(run), "--episode", "-2") == page


def test_an_episode_without_a_tokenizer_shows_what_was_parsed(capsys: Capture, run: Path) -> None:
    (run / "checkpoint" / "tokenizer.json").unlink()
    with (run / JOURNAL).open("ab") as journal:
        entry = entry_of("key", won=False, step=0)
        opening = (text_message("system", "Be brief."), text_message("user", "Find the number."))
        entry = structs.replace(entry, trajectory=structs.replace(entry.trajectory, messages=opening))
        journal.write(frame(encode_entry(entry)))
    page = shown(capsys, str(run), "--episode", "-1")
    assert "calls guess(number=19)" in page
    assert "system: Be brief." in page
    assert "user: Find the number." in page
    assert "<|im_start|>" not in page


@pytest.mark.parametrize("episode", ["0", "7", "-7"])
def test_an_episode_that_is_not_there(capsys: Capture, run: Path, episode: str) -> None:
    assert main(["show", str(run), "--episode", episode]) == 2
    assert f"no episode {episode}" in capsys.readouterr().err


def test_latest_run_is_shown_without_a_path(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["show"]) == 2
    assert "runs" in capsys.readouterr().err
    for name, written in (("a", 100.0), ("b", 300.0), ("c", 200.0)):
        os.utime(make_run(Path("runs") / name) / JOURNAL, (written, written))
    assert f"show {Path('runs/b')} --episode" in shown(capsys)


def test_run_that_has_not_played_is_named(capsys: Capture) -> None:
    Path("runs/d").mkdir(parents=True)
    Path("runs/d/config.json").write_text('{"environments": {"playground/GuessNumber": {}}}', encoding="utf-8")
    assert main(["show"]) == 1
    assert "runs/d: the run has not played yet" in capsys.readouterr().err


def test_tokenizer_beside_the_journal_shows_the_ids(capsys: Capture, run: Path) -> None:
    (run / "checkpoint" / "tokenizer.json").rename(run / "tokenizer.json")
    assert "<|im_start|>" in shown(capsys, str(run), "--episode", "1")
    assert "<|im_start|>" in shown(capsys, str(run / JOURNAL), "--episode", "1")


def test_brackets_and_colons_in_a_path_are_no_markup(capsys: Capture, tmp_path: Path) -> None:
    run = make_run(tmp_path / "[bold]:key:[" / "b]")
    assert f"orl show {run} --episode N" in shown(capsys, str(run))


def test_a_terminal_that_has_no_bars_and_arrows_is_shown_others(run: Path) -> None:
    program = "from orl_launcher.main import main; exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "show", str(run)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"held-out" in done.stdout


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_cuts_the_task_and_folds_the_rest(run: Path, width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(episodes_table(starmap(row_of, enumerate(read_journal(run), start=1))))
    cells = out.getvalue()
    assert max(map(len, cells.splitlines())) <= width
    assert cells.count("won") == 3
    assert cells.count("…") == 6
    assert cells.count("finished") == (6 if width == 60 else 0)


def test_a_journal_elsewhere_is_found_by_the_runs_configuration(capsys: Capture, run: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run / JOURNAL).rename(tmp_path / "elsewhere" / JOURNAL)
    config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    config["rollout"]["journal"] = str(tmp_path / "elsewhere")
    (run / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert "GuessNumber/test/" in shown(capsys, str(run))


def test_a_journal_without_episodes_says_so(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / JOURNAL).touch()
    assert shown(capsys, str(tmp_path)) == f"run {tmp_path}\nno episode to show\n"


def test_a_folder_or_file_that_is_not_there(capsys: Capture, tmp_path: Path) -> None:
    assert main(["show", str(tmp_path)]) == 1
    assert "no run here" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "none.jsonl.zst")]) == 1
    assert "no journal" in capsys.readouterr().err


def test_failed_episodes_alone_are_listed(capsys: Capture, run: Path) -> None:
    assert shown(capsys, str(run / JOURNAL), "--failed").count("lost") == 3


def entry_of(key: str, *, won: bool, step: int, index: int = 0, evaluation: bool = True, prompt: str = "") -> Entry:
    trajectory = make_trajectory(make_tokenizer(), key, won=won, index=index, evaluation=evaluation, prompt=prompt)
    return Entry(key=key, time=0.0, reward=float(won), success=won, step=step, trajectory=trajectory)


def test_an_episode_cannot_steer_the_terminal(run: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=100)
    hostile = entry_of("[bold]x\x1b[2J", won=True, step=0, prompt=HOSTILE + "[red]markup[/red]")
    console.print(episode_view(episode_rows("episode 1", hostile, load_decoder(run))))
    assert "\x1b" not in out.getvalue()
    assert "[red]markup[/red]" in out.getvalue()
    assert "[bold]x" in out.getvalue()


def test_both_viewers_show_failures_reasoning_and_rewards(run: Path) -> None:
    failed = ParseFailure(kind=FailureKind.INVALID_JSON, message=f"no JSON: {HOSTILE}")
    result = ToolResult(name="guess", content=(), failure=FailureKind.UNKNOWN_TOOL, seconds=0.5)
    entry = entry_of("key", won=False, step=0)
    said = Action(text=f"answer {HOSTILE}", reasoning=f"thought {HOSTILE}", calls=(failed,))
    turn = structs.replace(entry.trajectory.turns[0], action=said, results=(result,))
    entry = structs.replace(entry, trajectory=structs.replace(entry.trajectory, turns=(turn,), error=HOSTILE))
    rows = episode_rows("Episode 1", entry, None)
    out = io.StringIO()
    Console(file=out, width=1000).print(episode_view(rows))
    html = page_of(rows)
    for view in (out.getvalue(), html):
        assert "\x1b" not in view
        for told in ("error", "thought", "answer", "no JSON", failed.kind.value, "unknown_tool", "500 ms"):
            assert told in view


@given(st.lists(st.floats(-1e6, 1e6), max_size=200), st.integers(1, 60))
def test_a_sparkline_has_a_bar_for_each_bin_and_spans_the_scale(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    assert set(line) <= set(BARS)
    if len(values) <= width and len(set(values)) > 1:
        assert line[values.index(min(values))] == BARS[0]
        assert line[values.index(max(values))] == BARS[-1]


@pytest.mark.parametrize(("steps", "ends"), [(1, None), (2, (0.0, 1.0)), (3, (0.0, 2.0)), (30, (2.0, 27.0))])
def test_before_and_after_of_training_share_no_step(
    tmp_path: Path, steps: int, ends: tuple[float, float] | None
) -> None:
    rows = [{"step": step + 1, "kind": "train", "a/b/success": float(step)} for step in range(steps)]
    rows.append({"step": 0, "kind": "eval", "a/b/success": 7.0})
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert read_record(tmp_path).change("success") == ends


def test_a_run_is_followed_while_it_is_written(tmp_path: Path) -> None:
    out = io.StringIO()
    path = tmp_path / "metrics.jsonl"
    with following(path, 9, Console(file=out, width=60)):
        path.write_text('{"step": 0, "kind": "eval", "a/b/success": 0.25}\n{"step": 5, "kind": "update"}\n')
        with path.open("a") as file:
            file.write('{"step": 5, "kind": "train"}\n{"st')
    first, second = out.getvalue().splitlines()
    assert first == "held-out at step 0/9  success 25\u00a0%  0 ms"
    assert second == "step 5/9  0 ms  held-out 25\u00a0% at step 0"


@pytest.mark.parametrize(
    ("form", "value", "words"),
    [
        *((duration, *one) for one in ((0.0123, "12 ms"), (7500, "2 h 5 min"))),
        *((number, *one) for one in ((3.14159, "3.142"), (-0.0001, "0"))),
    ],
)
def test_quantity_is_written_briefly(form: Callable[[float], str], value: float, words: str) -> None:
    assert form(value) == words


def test_show_prints_curves_and_episodes(capsys: Capture, tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo")
    tree = printed(capsys, "show", str(run))
    assert tree["finished"] is True
    assert {(curve["name"], curve["kind"]) for curve in tree["curves"]} >= {("success", "train"), ("success", "eval")}
    assert [episode["number"] for episode in tree["episodes"]] == [1, 2, 3, 4, 5, 6]
    assert tree["episodes"][0]["conversations"] is None
    (one,) = printed(capsys, "show", str(run), "--episode", "6")["episodes"]
    assert one["verdict"] == "won"
    assert one["conversations"][0]["messages"][0]["tool_calls"][0]["function"]["name"] == "guess"
    assert len(one["conversations"][0]["data"][0]["logprobs"]) > 50


@pytest.mark.slow
def test_prepare_and_doctor_print_reports(capsys: Capture, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tree = printed(capsys, "prepare", "--config", LOCAL, "--output", str(tasks), "--max-tasks", "3")
    assert (tree["total"], tree["environments"]) == (3, {"playground/GuessNumber": 3})
    broken = tmp_path / "broken.yaml"
    broken.write_text("environments: 3", encoding="utf-8")
    tree = printed(capsys, "doctor", "--config", str(broken), code=1)
    assert tree["ok"] is False
    assert [(one["group"], one["verdict"]) for one in tree["findings"]] == [
        ("configuration", "failed"),
        ("configuration", "not checked"),
    ]
