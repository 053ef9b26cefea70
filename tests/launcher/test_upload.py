"""`orl upload`: what a run left over is sent, once, and what cannot be sent is said in one line."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from orl_launcher.main import main

from tests.kit.collector import Collector
from tests.launcher.synthetic import make_run

Capture = pytest.CaptureFixture[str]


def test_what_a_run_left_over_is_sent_once(capsys: Capture, tmp_path: Path, collector: Collector) -> None:
    run = str(make_run(tmp_path / "demo"))
    argv = ["upload", run, "--set", "rollout.upload=true"]
    assert main(argv) == 0
    assert capsys.readouterr().out == "6 rollouts sent\n"
    assert len(set(collector.finished())) == 6
    assert main(argv) == 0
    assert capsys.readouterr().out == "0 rollouts sent\n"
    assert len(collector.finished()) == 6


def test_refusals_and_an_end_before_all_was_sent(capsys: Capture, tmp_path: Path, collector: Collector) -> None:
    run = str(make_run(tmp_path / "demo"))
    collector.answers = [200, 200, 400, *([(503, {"Retry-After": "5"})] * 20)]
    assert main(["upload", run, "--seconds", "1", "--set", "rollout.upload=true"]) == 1
    assert capsys.readouterr().out == "1 rollouts sent, 1 refused by the platform; not all of them\n"


def test_a_signal_ends_the_wait_for_the_platform(capsys: Capture, tmp_path: Path, collector: Collector) -> None:
    """Sent entries are told and noted, and the next command sends the rest."""
    run = make_run(tmp_path / "demo")
    collector.answers = [200, 200, (503, {"Retry-After": "500"})]

    def signal_when_it_waits() -> None:
        while collector.asked < 3:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=signal_when_it_waits, daemon=True).start()
    assert main(["upload", str(run), "--set", "rollout.upload=true"]) == 143
    assert "not all of them" in capsys.readouterr().out


def test_what_the_command_served_itself_is_not_the_platforms(
    capsys: Capture, tmp_path: Path, collector: Collector
) -> None:
    assert main(["upload", str(make_run(tmp_path / "demo"))]) == 1
    assert "rollout.upload=true" in capsys.readouterr().err
    assert collector.asked == 0


def test_two_at_once_send_once(
    capsys: Capture, caplog: pytest.LogCaptureFixture, tmp_path: Path, collector: Collector
) -> None:
    run = make_run(tmp_path / "demo")
    with (run / "uploads.lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main(["upload", str(run), "--set", "rollout.upload=true"]) == 1
    assert "another process" in caplog.text
    assert capsys.readouterr().out == "0 rollouts sent; not all of them\n"
    assert collector.asked == 0


def test_what_cannot_be_sent_says_why(capsys: Capture, tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo")
    for argv, why in (
        ([str(run)], "Set OPENREWARD_API_KEY"),
        ([str(run), "--set", f"rollout.journal={tmp_path}"], "no journal here"),
        ([str(tmp_path)], "config.json"),
    ):
        assert main(["upload", *argv]) == 1
        assert why in capsys.readouterr().err
