"""A run through the public SDK against the stand-in: files, metrics, evaluation, checkpoints, resume, plan."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_core.trajectory import StopReason
from orl_launcher.configuration import paths_of
from orl_rollout.run_folder.checkpoint import checkpoint_in
from orl_rollout.run_folder.contract import Run
from orl_tinker.options import TinkerOptions, check_options
from orl_tinker.run import plan_run, train
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from tests.kit.wandb_files import rows_of
from tests.local.fakes import Player, by_row, make_run, rows, summary
from tests.tinker.serving import Served


def run_at(server: Served, folder: Path, checkpoint: Path, *, held_out: int = 0, **trainer: Any) -> Run:
    own = {"lora_rank": 4, "tinker_url": server.url}
    own |= {name: trainer.pop(name) for name in TinkerOptions.__struct_fields__ if name in trainer}
    run = make_run(folder, checkpoint, held_out=held_out, **trainer)
    config: RunConfig = run.config
    sections = {"tinker": own}
    return structs.replace(
        run,
        config=structs.replace(config, trainer=structs.replace(config.trainer, backend="tinker", sections=sections)),
    )


def trained(run: Run, script: Any = by_row) -> Player:
    player = Player(run.config, script)
    train(run, player.open)
    return player


def test_run_writes_its_files(server: Served, checkpoint: Path, tmp_path: Path):
    run = run_at(server, tmp_path / "run", checkpoint, held_out=2, save_interval=1, tensorboard=True)
    player = trained(run)
    assert (player.opened, player.closed) == (1, 1)
    found = rows(run)
    assert [(row["kind"], row["step"]) for row in found] == [
        ("eval", 0), ("train", 1), ("eval", 1), ("train", 2), ("eval", 2),
    ]  # fmt: skip
    for row in found[1::2]:
        assert row["logprob_difference"] < 1e-4
        assert {"loss", "grad_norm", "learning_rate", "rollout_seconds", "train_seconds", "weight_sync_seconds"} <= {
            *row
        }
        assert row["toy/Env/rollouts"] == 8
        assert row["toy/Env/judged"] == 5
    assert summary(run)["steps"] == 2
    assert "error" not in summary(run)
    assert [step["learning_rate"] for step in server.server.steps] == [1e-3, 1e-3]
    noted = checkpoint_in(run.folder / "checkpoint")
    assert noted is not None
    assert (noted.trainer, noted.step, noted.model) == ("tinker", 2, str(checkpoint))
    events = EventAccumulator(str(run.folder / "tensorboard")).Reload()
    for name in ("loss", "learning_rate", "toy/Env/judged", "toy/Env/success"):
        event, _ = events.Tensors(f"train/{name}")
        assert (event.step, make_ndarray(event.tensor_proto)) == (1, pytest.approx(found[1][name]))
    assert [one.step for one in events.Tensors("eval/toy/Env/judged")] == [0, 1, 2]
    with pytest.raises(ConfigError, match="server"):
        paths_of(structs.replace(run.config.trainer, model=str(run.folder / "checkpoint")))


def test_run_continues_from_its_checkpoint(server: Served, checkpoint: Path, tmp_path: Path):
    """The weights are those of a run that was never interrupted; other settings are refused."""
    whole = run_at(server, tmp_path / "whole", checkpoint, num_rollout=2)
    trained(whole)
    first = run_at(server, tmp_path / "first", checkpoint, num_rollout=1)
    trained(first)
    place = str(tmp_path / "first" / "checkpoint")
    for changed in ({"lr": 0.1}, {"lora_rank": 8}, {"num_rollout": 1}, {"load": str(tmp_path)}):
        run = run_at(server, tmp_path / "second", checkpoint, **{"num_rollout": 2, "load": place, **changed})
        with pytest.raises(ConfigError, match="--load"):
            plan_run(run)
    second = run_at(server, tmp_path / "second", checkpoint, num_rollout=2, load=place)
    trained(second)
    assert [row["step"] for row in rows(second)] == [2]
    assert summary(second)["resumed_step"] == 1
    models = list(server.server.models.values())
    for name, weight in models[0].weights().items():
        assert (weight - models[2].weights()[name]).abs().max() < 1e-5  # a lost update or state makes 1e-3
    assert rows(second)[0]["loss"] == pytest.approx(rows(whole)[1]["loss"], abs=1e-6)


def test_step_without_a_rollout_that_trains_makes_no_update(server: Served, checkpoint: Path, tmp_path: Path):
    run = run_at(server, tmp_path / "run", checkpoint, num_rollout=1)
    trained(run, lambda _: StopReason.ERROR)
    assert server.server.steps == []
    assert [row["step"] for row in rows(run)] == [1]


def test_plan_tells_what_a_run_would_do(server: Served, checkpoint: Path, tmp_path: Path):
    run = run_at(server, tmp_path / "run", checkpoint, loss_fn="cispo")
    plan = plan_run(run)
    assert "rank 4 with cispo" in plan.command
    assert server.url in plan.engine
    assert [one for one in plan.problems if "TINKER" in one] == []
    assert server.server.draws == []


@pytest.mark.slow
def test_wandb_has_the_metrics(server: Served, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "NETRC": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    run = run_at(server, tmp_path / "run", checkpoint, num_rollout=1, wandb_project="p")
    trained(run)
    import wandb

    wandb.teardown()  # its own process writes the end
    (file,) = run.folder.glob("wandb/offline-run-*/*.wandb")
    (logged,) = [row for row in rows_of(file) if "train/loss" in row]
    (train,) = rows(run)
    for name in ("loss", "learning_rate", "toy/Env/judged", "toy/Env/success"):
        assert float(logged[f"train/{name}"]) == train[name]
    assert logged["_step"] == "1"


@pytest.mark.parametrize(("sdk", "refused"), [("0.24.1", True), ("0.9.0", True), ("0.25.0", False), ("1.0", False)])
def test_sdk_that_is_too_old_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sdk: str, refused: bool
):
    about = tmp_path / f"tinker-{sdk}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tinker\nVersion: {sdk}\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = make_run(tmp_path / "run", checkpoint)
    with pytest.raises(ConfigError, match=f"tinker {sdk} .* 0.25") if refused else nullcontext():
        check_options(run.config, ())


def test_size_of_a_micro_batch_is_refused(checkpoint: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match="max_tokens_per_gpu"):
        check_options(make_run(tmp_path / "run", checkpoint, max_tokens_per_gpu=4096).config, ())


def test_workers_are_refused(checkpoint: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", checkpoint)
    rollout = structs.replace(run.config.rollout, workers=2)
    with pytest.raises(ConfigError, match=r"`rollout.workers` is 2.*Tinker"):
        plan_run(structs.replace(run, config=structs.replace(run.config, rollout=rollout)))


def test_plan_names_a_missing_key(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    run = make_run(tmp_path / "run", checkpoint)
    assert any("TINKER_API_KEY" in problem for problem in plan_run(run).problems)
