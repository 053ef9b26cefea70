"""The end of a run: its error and what to do; frozen engines and silence end it and its trainer."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_cluster.launch.command.command import Command, LaunchRequest, Layout
from orl_cluster.launch.machine.installation import Installation
from orl_cluster.launch.machine.probe import Findings
from orl_cluster.launch.run import attempts
from orl_cluster.launch.run.process import Failure, failure_of
from orl_core.config import EnvironmentConfig, RolloutConfig, RunConfig, TrainerConfig
from orl_core.errors import OrlError
from orl_rollout.run_folder.config_file import write_config
from orl_rollout.run_folder.contract import Run
from orl_rollout.run_folder.record import read_record

from tests.kit.saved import saved

# Ray 2.60, as the driver of two nodes printed it when the raylet of the second was killed.
MARKED = (
    "\x1b[33m(raylet)\x1b[0m The node with node id: 627f6dca660c and address: 10.0.0.2 and node name: 10.0.0.2 has "
    "been marked dead because the detector has missed too many heartbeats from it.\n"
)
DIED = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tip: 10.0.0.2\n"
    "The actor died because its node has died. Node Id: 627f6dca660c\n"
)


def command_in(folder: Path) -> Command:
    run = Run(
        config=RunConfig(environments={"A/B": EnvironmentConfig()}, trainer=TrainerConfig(backend="slime")),
        folder=folder,
        task_data=folder / "tasks.jsonl",
    )
    installation = Installation(trainer="slime", python="python3", findings=Findings())
    layout = Layout(nodes=2, per_node=8, actor=8, rollout=16, colocate=True, tensor_parallel=1)
    request = LaunchRequest(run=run, installation=installation, layout=layout)
    return Command(request=request, argv=(), environment={}, unknown="", memory="")


def error_of(monkeypatch: pytest.MonkeyPatch, folder: Path, failure: Failure) -> str:
    """The error of a run whose one attempt ended with `failure`."""
    monkeypatch.setattr(attempts, "_attempt", lambda _: (1, failure))
    with pytest.raises(OrlError) as ended:
        attempts.run_to_end(command_in(folder), lambda _: pytest.fail("no other attempt helps"))
    return str(ended.value)


@pytest.mark.parametrize(("log", "node"), [(MARKED + DIED, "10.0.0.2"), (DIED, "a node"), ("ValueError: no\n", "")])
def test_lost_node_is_read_from_the_log(tmp_path: Path, log: str, node: str):
    (tmp_path / "trainer.log").write_text(log, encoding="utf-8")
    assert failure_of(tmp_path / "trainer.log").lost_node == node


def test_run_that_lost_a_node_names_it_and_its_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    failure = Failure(error="ActorDiedError", lost_node="10.0.0.2")
    told = error_of(monkeypatch, tmp_path, failure)
    assert "10.0.0.2" in told
    assert "--load" not in told, "there is no checkpoint to load"
    saved(tmp_path / "checkpoint", 19)
    assert f"--load {tmp_path}" in error_of(monkeypatch, tmp_path, failure)


def test_unequal_weights_are_told_with_the_way_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    log = "Exception: check tensor equality failed:\nname=lm_head.weight\nrequests.exceptions.HTTPError: 400\n"
    (tmp_path / "trainer.log").write_text(log, encoding="utf-8")
    told = error_of(monkeypatch, tmp_path, failure_of(tmp_path / "trainer.log"))
    assert "trainer.flags.check-weight-update-equal=false" in told


def test_engine_that_died_before_a_checkpoint_ends_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert "refused" in error_of(monkeypatch, tmp_path, Failure(error="Connection refused", engine_gone=True))


def test_engines_of_a_lost_node_are_no_dead_engines(tmp_path: Path):
    log = tmp_path / "trainer.log"
    log.write_text(
        "Traceback (most recent call last):\n"
        "ray.exceptions.RayTaskError(ConnectionError): ray::SGLangEngine.resume_memory_occupation() (pid=1)\n"
        f"{MARKED}requests.ConnectionError: HTTPConnectionPool(host='10.0.0.2', port=15000): Max retries exceeded with "
        "url: /resume_memory_occupation (Connection refused)\n",
        encoding="utf-8",
    )
    failure = failure_of(log)
    assert failure.lost_node
    assert not failure.engine_gone


def test_run_that_breaks_off_is_not_finished(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def full(_: Command) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(attempts, "_attempt", full)
    command = command_in(tmp_path)
    write_config(tmp_path, command.request.run.config)
    with pytest.raises(OSError, match="No space"):
        attempts.run_to_end(command, lambda _: pytest.fail("no other attempt helps"))
    record = read_record(tmp_path)
    assert not record.finished
    assert "No space" in record.summary["error"]


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
