"""`--load` continues weights, optimizer, schedule, step and order of tasks: two runs equal one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from orl_core.errors import ConfigError, RunAborted
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder.checkpoint import CHECKPOINT_TRACKER, RELEASE, checkpoint_in
from orl_rollout.run_folder.contract import Run
from orl_rollout.runtime.runtime import RolloutRequest
from orl_trl.run_plan.resume import STATE, STATES
from orl_trl.training.training_run import train
from transformers import AutoModelForCausalLM

from tests.trl.checkpoints import weights_of
from tests.trl.distance import ROUNDING, distance
from tests.trl.fakes import make_run, rows, summary, tasks
from tests.trl.test_several_rows import Recorded

TASKS, STEPS = 5, 4  # an epoch has two steps, and leaves a task out


class Told(Recorded):
    """Recorded rollouts. `keys` are the tasks of each step; the rollouts of the step `ends` end the run."""

    def __init__(self, checkpoint: Path, ends: int = 0) -> None:
        super().__init__(AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval())
        self.keys: dict[str, str] = {}
        self._ends = ends

    async def play(self, request: RolloutRequest, _: object) -> Outcome:
        if request.rollout_id.startswith(f"train/{self._ends}/"):
            raise RunAborted("the environment is gone")
        self.keys[request.rollout_id] = request.task.key
        return await super().play(request, _)


def run_in(folder: Path, checkpoint: Path, **trainer: Any) -> Run:
    run = make_run(folder, checkpoint, **{"num_rollout": STEPS, "lr_decay_style": "linear", **trainer})
    played = [{"env_name": one.env_name, "split": one.split, "index": one.index} for one in tasks(TASKS)]
    lines = run.task_data.read_bytes().splitlines()
    last = msgspec.json.decode(lines[-1])
    last["metadata"] = {**last["metadata"], **played[-1]}
    run.task_data.write_bytes(b"\n".join([*lines, msgspec.json.encode(last)]) + b"\n")
    return run


def played(folder: Path, checkpoint: Path, ends: int = 0, **trainer: Any) -> dict[str, str]:
    player = Told(checkpoint, ends)
    run = run_in(folder, checkpoint, **{"max_logprob_difference": 1e9, **trainer})  # the player's logprobs are old
    if ends:
        with pytest.raises(RunAborted):
            train(run, lambda *_: player.open())
    else:
        train(run, lambda *_: player.open())
    return player.keys


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A run of four steps, and the tasks that it played."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, played(folder, checkpoint, save_interval=3)


def states_of(checkpoint: Path) -> dict[str, Any]:
    return {name: torch.load(checkpoint / name, weights_only=True) for name in ("optimizer.pt", "scheduler.pt")}


def same_end(one: Path, other: Path) -> None:
    assert distance(*(list(weights_of(end).values()) for end in (one, other))) < ROUNDING
    first, second = states_of(one), states_of(other)
    assert first["scheduler.pt"]["last_epoch"] == second["scheduler.pt"]["last_epoch"] == 2 * STEPS
    for moment in ("exp_avg", "exp_avg_sq"):
        ours, theirs = ([one[moment] for one in end["optimizer.pt"]["state"].values()] for end in (first, second))
        assert distance(ours, theirs) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [1, 2])
# shows A14
def test_two_runs_equal_one(checkpoint: Path, tmp_path: Path, whole: tuple[Path, dict[str, str]], stopped: int) -> None:
    expected, keys = whole
    before = played(tmp_path / "before", checkpoint, ends=stopped + 1)
    place = tmp_path / "before" / "checkpoint"
    after = played(tmp_path / "after", checkpoint, load=str(place))
    assert {**before, **after} == keys
    assert not before.keys() & after.keys()
    same_end(tmp_path / "after" / "checkpoint", expected / "checkpoint")
    run = make_run(tmp_path / "after", checkpoint)
    assert [row["step"] for row in rows(run)] == list(range(stopped + 1, STEPS + 1))
    told = summary(run)
    assert (told["resumed_from"], told["resumed_step"], told["steps"]) == (str(place), stopped, STEPS)
    noted = checkpoint_in(tmp_path / "after" / "checkpoint")
    assert noted is not None
    assert (noted.step, noted.model) == (STEPS, str(checkpoint))


def test_checkpoint_between_steps_is_continued(
    checkpoint: Path, tmp_path: Path, whole: tuple[Path, dict[str, str]]
) -> None:
    expected, keys = whole
    place = expected / "trainer" / "checkpoint-6"  # of step 3, which has two updates
    after = played(tmp_path / "after", checkpoint, load=str(place))
    assert after == {key: task for key, task in keys.items() if key.startswith("train/4/")}
    same_end(tmp_path / "after" / "checkpoint", expected / "checkpoint")


@pytest.mark.parametrize(
    ("trainer", "subject"),
    [
        ({"num_rollout": STEPS}, "--num-rollout"),
        ({"lr": 5e-4}, "`lr`"),
        ({"adam_beta2": 0.5}, "adam_beta2"),
        ({"weight_decay": 0.3}, "`weight_decay`"),
        ({"seed": 4}, "`seed`"),
        ({"optimizer": "sgd"}, "`optimizer`"),
        ({"n_samples": 2}, "`n_samples`"),
        ({"rollout_batch_size": 1}, "`rollout_batch_size`"),
    ],
)
def test_setting_that_continues_differently_is_refused(
    checkpoint: Path, tmp_path: Path, whole: tuple[Path, dict[str, str]], trainer: dict[str, Any], subject: str
) -> None:
    run = run_in(tmp_path / "run", checkpoint, **{"num_rollout": 9, "load": str(whole[0] / "checkpoint"), **trainer})
    with pytest.raises(ConfigError, match=subject):
        train(run)


def test_other_tasks_are_refused(checkpoint: Path, tmp_path: Path, whole: tuple[Path, dict[str, str]]) -> None:
    run = make_run(tmp_path / "run", checkpoint, num_rollout=9, load=str(whole[0] / "checkpoint"))
    with pytest.raises(ConfigError, match=r"tasks\.jsonl"):
        train(run)


def test_other_format_is_refused_with_the_command_that_converts(checkpoint: Path, tmp_path: Path) -> None:
    saved = tmp_path / "megatron"
    (saved / RELEASE).mkdir(parents=True)
    (saved / CHECKPOINT_TRACKER).write_text(RELEASE)
    with pytest.raises(ConfigError, match="orl convert"):
        train(run_in(tmp_path / "run", checkpoint, load=str(saved)))


def test_weights_without_state_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--model") as refusal:
        train(run_in(tmp_path / "run", checkpoint, load=str(checkpoint)))
    assert all(name in str(refusal.value) for name in (STATE, *STATES))
