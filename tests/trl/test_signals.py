"""A signal ends a training at every moment: it is never lost, and what is written is whole."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from orl_rollout.edge import interrupt
from orl_trl.training.training_run import train
from orl_trl.training.whole_checkpoints import WholeCheckpoints
from transformers import AutoModelForCausalLM

from tests.trl.fakes import Player, by_row, make_run, summary


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.slow
def test_two_signals_during_the_last_save_lose_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The training is finished: weights, summary and the row of the last step are there, and the run says so."""
    run = make_run(tmp_path / "run", checkpoint, num_rollout=1)
    seen: list[dict[str, object]] = []

    whole = WholeCheckpoints._save_optimizer_and_scheduler

    def save(self: WholeCheckpoints, folder: str) -> None:
        if Path(folder).parent == run.folder:  # else it is the save of an interval
            seen.append(summary(run))  # the summary is there before the weights
            for _ in range(2):
                send(signal.SIGINT)
                time.sleep(0.3)
        whole(self, folder)
        assert not (run.folder / "checkpoint").exists()

    monkeypatch.setattr(WholeCheckpoints, "_save_optimizer_and_scheduler", save)
    with interrupt.listening() as signals:
        train(run, Player(run.config, by_row).open)
    assert signals.exit_code(0) == 130
    assert seen[0]["interrupted"] is True
    assert summary(run)["steps"] == 1
    assert not summary(run).keys() & {"interrupted", "error"}
    AutoModelForCausalLM.from_pretrained(run.folder / "checkpoint")
    assert not list(run.folder.glob("*unfinished*"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_signal_at_any_moment_leaves_summary_and_weights(checkpoint: Path, tmp_path: Path, seed: int):
    """`python -m tests.launcher.signal_runs` does the same with whole commands."""
    chance = random.Random(seed)
    number = chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    run = make_run(tmp_path / "run", checkpoint, held_out=2, save_interval=1)
    player = Player(run.config, by_row)
    timer = threading.Timer(chance.uniform(0, 2), send, (number,))
    with interrupt.listening() as signals:
        timer.start()
        with suppress(interrupt.Interrupted):
            train(run, player.open)
        timer.join()
    assert signals.exit_code(0) == 128 + number
    assert player.opened == player.closed
    assert player.running == 0
    if player.opened:
        told = msgspec.json.decode((run.folder / "summary.json").read_bytes())
        assert told.get("interrupted") or told["steps"] == 2
        assert (run.folder / "checkpoint").is_dir() == (told["steps"] > 0)
    for saved in (*run.folder.glob("checkpoint*"), *(run.folder / "trainer").glob("checkpoint-*")):
        AutoModelForCausalLM.from_pretrained(saved)
    assert "orl-rollouts" not in [thread.name for thread in threading.enumerate()]
