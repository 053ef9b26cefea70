"""`orl rollout` and `orl prepare` with nothing faked but the model: environment, client, loop, SGLang's wire."""

from __future__ import annotations

import fcntl
import gc
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from orl_core.config import EnvironmentConfig
from orl_core.messages import Action
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn
from orl_launcher.cli import agent
from orl_launcher.commands.rollout import Played, played_of
from orl_launcher.main import main
from orl_launcher.view.server import Index
from orl_rollout.episodes.journal import read_journal
from orl_rollout.results.outcome import Outcome, outcome_of
from orl_rollout.run_folder.record import read_record
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.training.play import Batch, play
from transformers import PreTrainedTokenizerFast

from tests.kit.configs import LOCAL
from tests.kit.saved import hugging_face
from tests.kit.secrets import NO_SECRETS
from tests.kit.serving import engine
from tests.kit.tokenizers import build, template
from tests.launcher.outputs import printed

Capture = pytest.CaptureFixture[str]


def guessing(tokenizer: PreTrainedTokenizerFast) -> Any:
    """A slow policy whose guess follows from the seed of the rollout."""

    def policy(_ids: list[int], params: dict[str, Any]) -> Sequence[int]:
        time.sleep(0.02)
        call = f'{{"name": "guess", "arguments": {{"number": {params["sampling_seed"] % 60}}}}}'
        return tokenizer.encode(f"<tool_call>\n{call}\n</tool_call><|im_end|>", add_special_tokens=False)

    return policy


def test_tasks_are_played_against_an_engine_and_measured(capsys: Capture, tmp_path: Path, served: list[str]) -> None:
    tokenizer = build(template("qwen3_instruct_2507"))
    run = tmp_path / "run"  # its name stands for its checkpoint
    tokenizer.save_pretrained(hugging_face(run / "checkpoint"))
    (run / "config.json").write_text('{"environments": {}, "trainer": {"backend": "local"}}', encoding="utf-8")
    out = Path("runs/out")
    wide = ["--set", "rollout.turn_tokens=128", "--set", "rollout.context_tokens=4096"]
    with engine(guessing(tokenizer)) as url:
        argv = ["rollout", "--config", LOCAL, "--engine", url, "--model", str(run), *wide, *served]
        assert main([*argv, "--max-tasks", "6", "--samples", "2", "--name", "out"]) == 0
        shown = capsys.readouterr().out
        report = printed(capsys, *argv, "--max-tasks", "1", "--name", "second")
        assert main([*argv, "--set", "rollout.context_tokens=100", "--max-tasks", "1", "--name", "third"]) == 0
        assert "No rollout had a turn" in capsys.readouterr().out
    assert (report["rollouts"], report["errors"]) == (1, 0)
    assert report["metrics"]["playground/GuessNumber/rollouts"] == 1
    assert json.loads((out / "config.json").read_text())["trainer"]["model"] == str(run / "checkpoint")
    assert read_record(out).finished
    assert read_record(out).summary["rollouts"] == 12
    assert "episodes. To show them" in shown
    assert "pass@2" in shown
    assert (out / "tokenizer.json").is_file()
    entries = list(read_journal(out))
    assert len({entry.key for entry in entries}) == 12
    assert all(entry.trajectory.job.evaluation and not entry.trajectory.error for entry in entries)
    assert main(["show", str(out)]) == 0
    assert entries[0].trajectory.tools[0].name == "guess"
    capsys.readouterr()
    assert main(["show", str(out), "--episode", "1"]) == 0
    assert "<|im_start|>" in capsys.readouterr().out
    point = json.loads((out / "metrics.jsonl").read_text(encoding="utf-8"))
    assert point["playground/GuessNumber/rollouts"] == 12
    rate = sum(entry.success for entry in entries) / 12
    assert point["playground/GuessNumber/pass@1"] == pytest.approx(rate)
    capsys.readouterr()
    assert main([*argv, "--name", "out"]) == 2
    assert "--name" in capsys.readouterr().err


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedTokenizerFast:
    tokenizer = build(template("qwen3_instruct_2507"))
    tokenizer.save_pretrained(tmp_path / "model")
    return tokenizer


def test_rollouts_have_the_limits_of_training(
    tmp_path: Path, model: PreTrainedTokenizerFast, served: list[str]
) -> None:
    clusters = ["--set", "trainer.backend=slime", "--set", "rollout.context_tokens=null"]
    with engine(guessing(model)) as url:
        assert main([*words(tmp_path, url, "--max-tasks", "1", *served), *clusters]) == 0
    (entry,) = read_journal(tmp_path / "runs" / "out")
    limits = entry.trajectory.job.limits
    assert (limits.turn_tokens, limits.context_tokens, limits.rollout_tokens) == (128, 8192, 8192)


@pytest.fixture
def served(guess_number: str) -> list[str]:
    """Options that name a server, so that the command starts none: a process of its own takes seconds."""
    return ["--set", f"environments.playground/GuessNumber.base_url={guess_number}"]


def words(tmp_path: Path, url: str, *more: str) -> list[str]:
    wide = ["--set", "rollout.turn_tokens=128", "--set", "rollout.context_tokens=4096"]
    to = ["--engine", url, "--model", str(tmp_path / "model"), "--name", "out"]
    return ["rollout", "--config", LOCAL, *to, *wide, *more]


def test_agent_is_a_function_or_a_command(capsys: Capture) -> None:
    assert agent("m.n:f") == "m.n:f"
    assert agent("my-agent --headless 'two words'") == {"command": ["my-agent", "--headless", "two words"]}
    for text in ("", "'"):
        assert main(["rollout", "--config", LOCAL, "--agent", text]) == 2
        assert "--agent" in capsys.readouterr().err
    assert main(["rollout", "--config", LOCAL, "--agent", "no-such-program --now"]) == 1
    assert "no-such-program" in capsys.readouterr().err
    assert main(["train", "local", "--config", LOCAL, "--dry-run", "--agent", "no_such_module:f"]) == 1
    assert "no_such_module" in capsys.readouterr().err


def ids_of(run: Path) -> dict[str, list[tuple[int, ...]]]:
    ids = [(entry.key, [turn.action_ids for turn in entry.trajectory.turns]) for entry in read_journal(run)]
    assert len(dict(ids)) == len(ids)  # each counts once
    return dict(ids)


@pytest.mark.slow
@pytest.mark.usefixtures("heeds_hangup")
def test_interrupted_rollouts_continue_as_one_run(
    capsys: Capture, tmp_path: Path, model: PreTrainedTokenizerFast, served: list[str]
) -> None:
    """A signal, a kill that tears the last line, and a run to the end."""
    out, whole = Path("runs/out"), Path("runs/whole")
    with engine(guessing(model)) as url:
        argv = words(tmp_path, url, "--samples", "4", "--max-tasks", "6", *served)
        assert main([*argv, "--name", "whole"]) == 0
        argv += ["--set", f"rollout.journal={tmp_path}"]
        played = 0
        for number in (signal.SIGHUP, signal.SIGKILL):
            argv += ["--concurrency", "2"]
            command = [sys.executable, "-c", "from orl_launcher.main import main; exit(main())", *argv]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
                deadline = time.monotonic() + 60
                while not (out.is_dir() and len(ids_of(out)) > played) and time.monotonic() < deadline:
                    time.sleep(0.05)
                child.send_signal(number)
                shown, _ = child.communicate(timeout=60)
            played = len(ids_of(out))
            if number != signal.SIGKILL:
                argv = shlex.split(shown.splitlines()[-1].partition("orl ")[2])
                summary = read_record(out).summary
                assert (child.returncode, summary["interrupted"], "error" in summary) == (128 + number, True, False)
                assert not list(out.glob("sessions-*.jsonl"))
                assert summary["rollouts"] == played < 24
        last = max(out.glob("journal-*"))
        last.write_bytes(last.read_bytes()[:-5])
        assert main(argv) == 0
    assert ids_of(out) == ids_of(whole)
    first, second = (read_record(run).points[-1].metrics.items() for run in (out, whole))
    assert all("seconds" in name or "cache" in name for name, _ in first ^ second)
    assert read_record(out).finished
    assert read_record(out).config["rollout"]["journal"] is None  # `orl upload` looks where the episodes are


def test_continued_rollouts_keep_their_settings(
    capsys: Capture, tmp_path: Path, model: PreTrainedTokenizerFast, served: list[str]
) -> None:
    with engine(guessing(model)) as url:
        assert main(words(tmp_path, url, "--max-tasks", "1", *served)) == 0
    Path("runs/trained").mkdir()
    Path("runs/trained/config.json").write_bytes(Path("runs/out/config.json").read_bytes())
    capsys.readouterr()
    sets = ("eval.temperature=0.1", "thinking=true", "trainer.seed=5", "trainer.allow_changes=thinking")
    named = ("--samples 2", "--name new", "--max-tasks 1", "--split test", "--model other", "--continue runs/trained")
    for more in (*named, *(f"--set {change}" for change in sets)):
        assert main(["rollout", "--continue", "runs/out", *more.split()]) in (1, 2), more
        assert capsys.readouterr().err.count("\n") == 1
    with Path("runs/out/rollout.lock").open("wb") as lock:  # as another process that plays
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert main(["rollout", "--continue", "runs/out"]) == 2
    assert main(["rollout", "--continue", "runs/out", "--set", "rollout.patience=5"]) == 0


def test_errors_above_the_rate_fail_and_are_in_the_summary(capsys: Capture, model: PreTrainedTokenizerFast) -> None:
    """Three of four rollouts: the reward function fails for all answers but one."""
    answer = model.encode("42<|im_end|>", add_special_tokens=False)
    rows = [{"prompt": f"{number} x 1?", "label": "42" if number == 42 else ""} for number in (1, 2, 3, 42)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    Path("picky_scores.py").write_text(
        "from pathlib import Path\n\n\n"
        "def exact(one):\n    return float(one.job.task.task_spec['label'] or Path('mended').read_text())\n",
        encoding="utf-8",
    )
    Path("rows.yaml").write_text(
        "environments: {}\ntrainer: {task_data: rows.jsonl}\nreward: picky_scores:exact\n", encoding="utf-8"
    )
    with engine(lambda _ids, _params: answer) as url:
        argv = ["rollout", "--config", "rows.yaml", "--engine", url, "--model", "model"]
        assert main([*argv, "--name", "out"]) == 1
        assert main([*argv, "--name", "more", "--set", "rollout.max_error_rate=0.75"]) == 0
        run = Path("runs/out")
        assert "3 of 4 rollouts" in read_record(run).summary["error"]
        assert "error" not in read_record(Path("runs/more")).summary
        assert "3 rollouts ended in ERROR" in capsys.readouterr().out
        Path("mended").write_text("0", encoding="utf-8")
        index = Index(run)
        index.refresh()
        assert len(index.rows) == 4
        assert main(["rollout", "--continue", "runs/out", "--engine", url]) == 0
    assert sum(entry.replaced for entry in read_journal(run, replaced=True)) == 3
    index.refresh()
    assert (len(ids_of(run)), len(index.rows)) == (4, 4)
    assert read_record(run).points[-1].metrics["plain/judged"] == 4
    assert {path.stat().st_mode & 0o777 for path in run.glob("journal-*")} == {0o600}


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (["--name", "out"], "exists already"),
        (["--name", "elsewhere/out"], "without a path"),
    ],
)
def test_rollout_makes_a_new_run_of_that_name(capsys: Capture, words: list[str], advice: str) -> None:
    Path("runs/out").mkdir(parents=True)
    for command in (["rollout"], ["train", "local"], ["gateway", "--engine", "http://127.0.0.1:1", "--model", "m"]):
        assert main([*command, "--config", LOCAL, *words]) == 2
        assert advice in capsys.readouterr().err
    assert [path.name for path in Path().rglob("*")] == ["runs", "out"]


def test_what_cannot_be_written_is_one_line(capsys: Capture, tmp_path: Path, served: list[str]) -> None:
    argv = ["prepare", "--config", LOCAL, "--max-tasks", "2", *served, "--output"]
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for output in (tmp_path / "folder", tmp_path / "file" / "tasks.jsonl"):
        assert main([*argv, str(output)]) == 1
        assert capsys.readouterr().err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_the_configuration_is_not_overwritten_with_tasks(capsys: Capture, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_bytes(Path(LOCAL).read_bytes())
    assert main(["prepare", "--config", str(config), "--output", str(config), "--max-tasks", "2"]) == 2
    assert "the configuration itself" in capsys.readouterr().err
    assert config.read_bytes() == Path(LOCAL).read_bytes()


def test_prepare_counts_and_a_wrong_split_leaves_the_old_file(
    capsys: Capture, tmp_path: Path, served: list[str]
) -> None:
    output = tmp_path / "tasks.jsonl"
    argv = ["prepare", "--config", LOCAL, *served, "--output", str(output), "--max-tasks", "20", "--seed", "3"]
    assert main(argv) == 0
    assert f"20 tasks in {output}" in capsys.readouterr().out
    first = output.read_bytes()
    assert len(first.splitlines()) == 20
    assert main([*argv, "--split", "none"]) == 1
    assert "no split `none`" in capsys.readouterr().err
    assert output.read_bytes() == first
    assert main([*argv, "--split", "eval_splits"]) == 0
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [row["metadata"]["split"] for row in rows] == ["test"] * 20


def test_rollout_plays_the_held_out_tasks_of_training(
    capsys: Capture, tmp_path: Path, model: PreTrainedTokenizerFast, served: list[str]
) -> None:
    most = ["--set", "eval.max_tasks=3"]
    with engine(guessing(model)) as url:
        assert main(words(tmp_path, url, "--split", "eval_splits", *most, *served)) == 0
    entries = list(read_journal(tmp_path / "runs" / "out"))
    assert [entry.trajectory.job.task.split for entry in entries] == ["test"] * 3
    assert "n 3)" in capsys.readouterr().out
    assert main(words(tmp_path, "http://127.0.0.1:1", "--split", "test", "--task-data", "t.jsonl", "--name", "b")) == 2
    assert "--split" in capsys.readouterr().err


def test_workers_without_a_server_are_refused(capsys: Capture) -> None:
    Path("c.yaml").write_text("environments: {Org/Env: {}}\nrollout: {workers: 2}\n", encoding="utf-8")
    assert main(["rollout", "--config", "c.yaml", "--model", "some/name"]) == 1
    assert "`rollout.workers` is 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "subject"),
    [
        (["--engine", "http://127.0.0.1:1"], 2, "--model"),  # its tokenizer is needed
        (["--model", "playground/Chess"], 1, "playground/Chess"),
    ],
)
def test_model_that_is_not_known_is_refused(capsys: Capture, words: list[str], code: int, subject: str) -> None:
    Path("c.yaml").write_text("environments: {Org/Env: {}}\n", encoding="utf-8")
    assert main(["rollout", "--config", "c.yaml", *words]) == code
    assert subject in capsys.readouterr().err


def test_dead_engine_fails_before_any_work(capsys: Capture, tmp_path: Path, model: PreTrainedTokenizerFast) -> None:
    assert main(words(tmp_path, "http://127.0.0.1:1", "--max-tasks", "3")) == 1
    assert "--engine http://127.0.0.1:1" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "out").exists()


def test_misspelt_game_is_refused_before_a_server_starts(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("orl_playground.server.subprocess.Popen")
    Path("c.yaml").write_text("environments: {playground/GuesNumber: {}}", encoding="utf-8")
    for argv in (["prepare", "--output", "t.jsonl"], ["train", "local", "--dry-run", "--model", "m"], ["doctor"]):
        assert main([*argv, "--config", "c.yaml"]) == 1
        said = capsys.readouterr()
        assert "did you mean guessnumber?" in said.err + said.out
    assert not Path("runs").exists()


def test_plain_and_chat_rows_are_played_and_scored_alone(capsys: Capture, model: PreTrainedTokenizerFast) -> None:
    answer = model.encode("42<|im_end|>", add_special_tokens=False)
    chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "?"}]}]
    rows = [{"prompt": "6 x 7?", "label": "42"}, {"prompt": chat, "label": "41", "metadata": {"source": "me"}}]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    Path("scores_of_rows.py").write_text(
        "def exact(trajectory):\n"
        "    answer = trajectory.turns[-1].action.text\n"
        "    return float(answer == trajectory.job.task.task_spec['label'])\n",
        encoding="utf-8",
    )
    config = "environments: {}\ntrainer: {task_data: rows.jsonl}\n"
    Path("rows.yaml").write_text(config, encoding="utf-8")
    with engine(lambda _ids, _params: answer) as url:
        argv = ["rollout", "--config", "rows.yaml", "--engine", url, "--model", "model", "--name", "out"]
        assert main(argv) != 0
        assert "rows.jsonl:1: it is a plain row" in capsys.readouterr().err
        assert main([*argv[:-1], "scored", "--set", "reward=scores_of_rows:exact"]) == 0
    entries = list(read_journal(Path("runs/scored")))
    assert sorted(entry.reward for entry in entries) == [0.0, 1.0]
    assert {len(entry.trajectory.turns) for entry in entries} == {1}
    assert {entry.trajectory.stop_reason for entry in entries} == {"finished"}
    assert [[message.role for message in entry.trajectory.messages] for entry in entries if entry.reward == 0.0] == [
        ["system", "user"]
    ]


IDS = 28_000
ROLLOUTS = 20


class Player:
    """A runtime whose rollouts are long, and end at once."""

    async def play(self, request: RolloutRequest, _: object) -> Outcome:
        generation = Generation(token_ids=tuple(range(IDS)), logprobs=(-0.5,) * IDS, finish_reason="stop")
        turn = Turn(observation=(1, 2), generations=(generation,), action=Action(text="x" * IDS))
        job = RolloutSpec(task=request.task, rollout_id=request.rollout_id)
        ended = Trajectory(job=job, turns=(turn,), stop_reason=StopReason.FINISHED)
        return outcome_of(ended, EnvironmentConfig(), NO_SECRETS)


@pytest.mark.slow
async def test_rollouts_leave_numbers_alone() -> None:
    task = Task(env_name="A/B", deployment_name="A/B", task_spec={"id": 1})
    engine: Any = None
    played = await play(Batch(tasks=(task,), samples=ROLLOUTS, concurrency=2), Player(), engine, played_of)
    assert len(played) == ROLLOUTS
    assert all(isinstance(one, Played) and one.stats.action_tokens == IDS for one in played)
    assert len(msgspec.json.encode(played)) < 1_000 * ROLLOUTS
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each) is Trajectory and each.job.rollout_id.startswith(task.key)]
    assert not kept
