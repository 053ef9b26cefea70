"""`orl gateway` to its normal end, a signal; and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from orl_launcher.main import main
from orl_rollout.episodes.journal import read_journal

from tests.kit.serving import engine, free_port
from tests.kit.tokenizers import build, template

Capture = pytest.CaptureFixture[str]
KEY = "planted-key-of-the-gateway"


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def test_session_is_recorded_and_shown(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORL_GATEWAY_KEY", KEY)
    tokenizer = build(template("qwen3"))
    tokenizer.save_pretrained(tmp_path / "model")
    answer = tokenizer.encode(f"Well. {KEY}<|im_end|>", add_special_tokens=False)
    port, out = free_port(), Path("runs/out")
    heard: list[dict[str, Any]] = []

    def plays() -> None:
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        try:
            while not heard:
                try:
                    heard.append(post(url, {"model": "m", "messages": [{"role": "user", "content": "Hi."}]}))
                except urllib.error.URLError:
                    continue
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    with engine(lambda _ids, _sampling: answer) as url:
        playing = threading.Thread(target=plays)
        playing.start()
        words = ["--model", str(tmp_path / "model"), "--engine", url, "--port", str(port), "--name", "out"]
        assert main(["gateway", *words]) == 130
        playing.join()
    assert "Well." in heard[0]["choices"][0]["message"]["content"]
    (entry,) = read_journal(out)
    assert entry.trajectory.contains_secret
    assert main(["show", str(out), "--episode", "1"]) == 0
    shown = capsys.readouterr()
    assert "Well." in shown.out
    written = b"".join(path.read_bytes() for path in out.iterdir() if path.suffix == ".json")
    assert KEY not in shown.out + shown.err + written.decode()


@pytest.mark.parametrize(
    ("words", "subject"),
    [
        ([], "--engine"),
        (["--engine", "http://127.0.0.1:9"], "--model"),
        (["--engine", "http://127.0.0.1:9", "--model", "m", "--agent", "m:f"], "--agent"),
        (["--engine", "http://127.0.0.1:9", "--model", "m", "--set", "agent=m:f"], "agent"),
        (["--engine", "http://127.0.0.1:9", "--model", "m", "--set", "rollout.upload=true"], "upload"),
        (["--engine", "http://127.0.0.1:9", "--model", "m"], "ORL_GATEWAY_KEY"),  # no terminal shows a new one
    ],
)
@pytest.mark.parametrize("key", ["", "short"])  # one that anybody can guess is refused, too
def test_what_cannot_be_obeyed_is_refused(
    key: str, words: list[str], subject: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORL_GATEWAY_KEY", key)
    assert main(["gateway", *words]) == 2
    assert subject in capsys.readouterr().err
