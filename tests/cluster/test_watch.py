"""A run ends with an error in its summary, and its trainer with it, if engines are frozen or nothing moves."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_cluster.launch.command.command import Command
from orl_cluster.launch.run import attempts
from orl_core.config import RolloutConfig
from orl_core.errors import OrlError
from orl_rollout.run_folder.record import read_record

from tests.cluster.test_attempts import command_in

# Logs as slime does, a step at a time, with ever larger differences; then it hangs, as a trainer does at a barrier.
TRAINER = """
import os, pathlib, sys, time
pathlib.Path("pid").write_text(str(os.getpid()))
for step in range(STEPS):
    print(f"rollout {step}: {{'rollout/response_lengths': 10.0}}")
    print(f"step {step}: {{'train/loss': 0.1, 'train/train_rollout_logprob_abs_diff': {0.001 + GROWTH * step}}}")
    print(f"perf {step}: {{'perf/train_time': 1.0}}", flush=True)
if HANGS: time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none(_: str, environment: Mapping[str, str], **__: Any) -> AbstractContextManager[Mapping[str, str]]:
        return nullcontext(environment)

    monkeypatch.setattr(attempts, "ray_cluster", none)
    monkeypatch.chdir(tmp_path)


def command_of(folder: Path, *, steps: int, growth: float, hangs: bool, argv: tuple[str, ...] = ()) -> Command:
    """The command of a trainer made of TRAINER."""
    text = TRAINER.replace("STEPS", str(steps)).replace("GROWTH", str(growth)).replace("HANGS", str(hangs))
    (folder / "train.py").write_text(text, encoding="utf-8")
    command = command_in(folder)
    request = command.request
    findings = structs.replace(request.installation.findings, root=str(folder))
    installation = structs.replace(request.installation, python=sys.executable, findings=findings)
    return structs.replace(command, request=structs.replace(request, installation=installation), argv=argv)


def ended(command: Command) -> str:
    """The error with which the run ends; its trainer is gone, and the summary says why."""
    folder = command.request.run.folder
    with pytest.raises(OrlError) as error:
        attempts.run_to_end(command, lambda _: pytest.fail("no other attempt helps"))
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text(encoding="utf-8")), 0)
    told = str(error.value)
    assert read_record(folder).summary["error"] == told
    return told


@pytest.mark.parametrize("hangs", [True, False])
def test_frozen_engine_ends_the_run(tmp_path: Path, *, hangs: bool) -> None:
    """Also if the trainer has ended before its last lines were read."""
    assert "weight sync" in ended(command_of(tmp_path, steps=40, growth=0.004, hangs=hangs))


@pytest.mark.parametrize(
    ("growth", "argv"), [(0.0, ()), (0.004, ("--partial-rollout",)), (0.004, ("--sglang-quantization", "fp8"))]
)
def test_healthy_or_old_rollouts_go_on(tmp_path: Path, growth: float, argv: tuple[str, ...]) -> None:
    command = command_of(tmp_path, steps=40, growth=growth, hangs=False, argv=argv)
    attempts.run_to_end(command, lambda _: pytest.fail("it did not fail"))
    assert read_record(tmp_path).summary["steps"] == 40


def test_checkpoints_elsewhere_are_linked_from_the_run(tmp_path: Path) -> None:
    command = command_of(tmp_path, steps=1, growth=0.0, hangs=False)
    run, save = command.request.run, tmp_path / "elsewhere"
    options = structs.replace(run.config.trainer, sections={"cluster": {"save": str(save)}})
    run = structs.replace(run, config=structs.replace(run.config, trainer=options))
    command = structs.replace(command, request=structs.replace(command.request, run=run))
    attempts.run_to_end(command, lambda _: pytest.fail("it did not fail"))
    assert (run.folder / "checkpoint").readlink() == save


def test_silent_trainer_ends_the_run(tmp_path: Path) -> None:
    command = command_of(tmp_path, steps=2, growth=0.0, hangs=True)
    run = command.request.run
    short = RolloutConfig(call_timeout=0.1, turn_timeout=0.1, rollout_timeout=0.1, patience=0.1)
    options = structs.replace(run.config.trainer, sections={"cluster": {"stall_timeout": 4.0}})
    run = structs.replace(run, config=structs.replace(run.config, rollout=short, trainer=options))
    request = structs.replace(command.request, run=run)
    told = ended(structs.replace(command, request=request))
    assert "Last step: 2" in told
