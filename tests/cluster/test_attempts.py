"""How a run ends whose trainer failed: the error, and what to do about its cause."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from orl_cluster.launch.command.command import Command
from orl_cluster.launch.command.layout import LaunchRequest, Layout
from orl_cluster.launch.machine.installation import Installation
from orl_cluster.launch.machine.probe import Findings
from orl_cluster.launch.run import attempts
from orl_cluster.launch.run.process import Failure, failure_of
from orl_core.config import EnvironmentConfig, RunConfig, TrainerConfig
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


def test_run_that_lost_a_node_names_it_and_its_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):  # shows G16
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


def test_other_failure_tells_of_no_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    assert "lost" not in error_of(monkeypatch, tmp_path, Failure(error="ValueError: no"))


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
