"""`orl rollout` and `orl prepare` with nothing faked but the model: playground, client, loop, SGLang's wire."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from orl_launcher.main import main
from orl_launcher.playground import cache_folder
from orl_rollout.journal import read_journal
from orl_rollout.testing import SglangServer
from transformers import PreTrainedTokenizerFast

from tests.launcher.test_main import LOCAL
from tests.tokenizers import build, template

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
    assert "holds a journal already" in capsys.readouterr().err


def test_prepare_counts_and_a_wrong_split_leaves_the_old_file(capsys: Capture, tmp_path: Path) -> None:
    output = tmp_path / "tasks.jsonl"
    argv = ["prepare", "--config", LOCAL, "--output", str(output), "--max-tasks", "20", "--seed", "3"]
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
