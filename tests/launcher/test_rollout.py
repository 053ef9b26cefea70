"""`orl rollout` and `orl prepare` with nothing faked but the model: playground, client, loop, SGLang's wire."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from orl_launcher.cli import UsageError
from orl_launcher.commands.rollout import make_folder
from orl_launcher.main import main
from orl_launcher.playground import cache_folder
from orl_rollout.journal.journal import read_journal
from orl_testing import SglangServer
from transformers import PreTrainedTokenizerFast

from tests.kit.tokenizers import build, template
from tests.launcher.test_main import LOCAL

Capture = pytest.CaptureFixture[str]


def guessing(tokenizer: PreTrainedTokenizerFast) -> Any:
    """A policy that always guesses 30."""
    call = '<tool_call>\n{"name": "guess", "arguments": {"number": 30}}\n</tool_call><|im_end|>'
    answer = tokenizer.encode(call, add_special_tokens=False)

    def policy(_ids: list[int], _params: dict[str, Any]) -> Sequence[int]:
        return answer

    return policy


@contextmanager
def engine(policy: Any, **settings: Any) -> Generator[str]:
    """An SGLang stand-in on a thread of its own."""
    running: Future[tuple[str, Callable[[], object]]] = Future()

    async def serve() -> None:
        ended = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with SglangServer(policy, **settings) as server:
            running.set_result((server.url, lambda: loop.call_soon_threadsafe(ended.set)))
            await ended.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    url, end = running.result(10)
    try:
        yield url
    finally:
        end()
        thread.join(10)


def test_tasks_are_played_against_an_engine_and_measured(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENREWARD_API_KEY", raising=False)
    tokenizer = build(template("qwen3_instruct_2507"))
    tokenizer.save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    wide = ["--set", "rollout.turn_tokens=128", "--set", "rollout.context_tokens=4096"]
    with engine(guessing(tokenizer)) as url:
        argv = ["rollout", "--config", LOCAL, "--engine", url, "--model", str(tmp_path / "model"), *wide]
        assert main([*argv, "--max-tasks", "6", "--samples", "2", "--output", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "pass@1" in shown
    assert "pass@2" in shown
    entries = list(read_journal(out))
    assert len({entry.key for entry in entries}) == 12
    assert all(entry.trajectory.job.evaluation and not entry.trajectory.error for entry in entries)
    assert main(["show", str(out)]) == 0
    point = json.loads((out / "metrics.jsonl").read_text(encoding="utf-8"))
    assert point["playground/GuessNumber/rollouts"] == 12
    rate = sum(entry.success for entry in entries) / 12
    assert point["playground/GuessNumber/pass@1"] == pytest.approx(rate)
    capsys.readouterr()
    assert main([*argv, "--output", str(out)]) == 2
    assert "holds a run already" in capsys.readouterr().err


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedTokenizerFast:
    tokenizer = build(template("qwen3_instruct_2507"))
    tokenizer.save_pretrained(tmp_path / "model")
    return tokenizer


@pytest.fixture
def served(guess_number: str) -> list[str]:
    """Options that name a server, so that the command starts none: a process of its own takes seconds."""
    return ["--set", f"environments.playground/GuessNumber.base_url={guess_number}"]


def words(tmp_path: Path, url: str, *more: str) -> list[str]:
    wide = ["--set", "rollout.turn_tokens=128", "--set", "rollout.context_tokens=4096"]
    to = ["--engine", url, "--model", str(tmp_path / "model"), "--output", str(tmp_path / "out")]
    return ["rollout", "--config", LOCAL, *to, *wide, *more]


def test_what_an_engine_never_answered_counts_for_nothing_and_fails(
    capsys: Capture, tmp_path: Path, model: PreTrainedTokenizerFast, served: list[str]
) -> None:
    with engine(guessing(model)) as url:
        assert main(words(tmp_path, f"{url}/v1", "--max-tasks", "3", *served)) == 1
    shown = capsys.readouterr().out
    assert "3 ended in ERROR" in shown
    assert "404" in shown
    point = json.loads((tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8"))
    assert point["playground/GuessNumber/rollouts"] == 3
    assert not {"playground/GuessNumber/success", "playground/GuessNumber/reward"} & point.keys()


@pytest.mark.slow
def test_an_interrupted_run_keeps_its_episodes_and_what_an_upload_needs(
    tmp_path: Path, model: PreTrainedTokenizerFast
) -> None:
    out = tmp_path / "out"
    with engine(guessing(model)) as url:
        argv = words(tmp_path, url, "--samples", "100000", "--concurrency", "2", "--set", f"rollout.journal={tmp_path}")
        with subprocess.Popen(
            [sys.executable, "-c", "from orl_launcher.main import main; exit(main())", *argv]
        ) as child:
            deadline = time.monotonic() + 60
            while not (out.is_dir() and any(True for _ in read_journal(out))) and time.monotonic() < deadline:
                time.sleep(0.1)
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == 130
    assert any(True for _ in read_journal(out))
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config["rollout"]["journal"] is None  # `orl upload` looks where the episodes are
    assert main(["show", str(out)]) == 0


def test_a_folder_that_holds_something_else_is_not_written_into(
    capsys: Capture, tmp_path: Path, model: PreTrainedTokenizerFast
) -> None:
    model.save_pretrained(tmp_path / "out")
    (tmp_path / "out" / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    assert main(words(tmp_path, "http://127.0.0.1:1")) == 2
    assert "--output" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--output"):
        make_folder(tmp_path / "out", fresh=True)
    assert json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8")) == {"model_type": "qwen3"}


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
    wrong = ["--set", "environments.playground/GuessNumber.splits=[none]"]
    assert main([*argv, *wrong]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert output.read_bytes() == first


def test_an_engine_needs_a_model_for_its_tokenizer(capsys: Capture, tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("environments: {Org/Env: {}}\n", encoding="utf-8")
    assert main(["rollout", "--config", str(config), "--engine", "http://127.0.0.1:1"]) == 2
    assert "--model" in capsys.readouterr().err


def test_a_model_that_the_playground_does_not_have(capsys: Capture, tmp_path: Path) -> None:
    argv = ["rollout", "--config", LOCAL, "--model", "playground/Chess", "--max-tasks", "1"]
    assert main([*argv, "--output", str(tmp_path / "out")]) == 1
    assert "playground/Chess" in capsys.readouterr().err


def test_where_made_models_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == Path.home() / ".cache" / "orl"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/orl")
    monkeypatch.setenv("ORL_CACHE", "/y")
    assert cache_folder() == Path("/y")
