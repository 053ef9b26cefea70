"""Options of trainers on a cluster: checks between keys, owned ones, evaluation sets, and their file in a worker."""

from __future__ import annotations

import re
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from orl_cluster.hooks import worker
from orl_cluster.launch.command.command import eval_options, write_eval_sets
from orl_cluster.launch.command.trainer_defaults import OWNED, refuse_by_name
from orl_cluster.launch.options import GENERATE
from orl_core.config import RunConfig, decode_config
from orl_core.errors import ConfigError
from orl_core.task import Task, row_of
from orl_rollout.run_folder.contract import Run
from orl_rollout.tasks.file import read_tasks
from orl_slime.launch import TRAINER


def config_of(rollout: dict[str, Any], **trainer: Any) -> RunConfig:
    tree = {"environments": {"A/B": {}}, "rollout": rollout, "trainer": {"backend": "slime", **trainer}}
    return decode_config(tree, "test")


@pytest.mark.parametrize(
    ("trainer", "extra", "rollout", "expected"),
    [
        ({}, (), {}, 8192),
        ({}, (), {"context_tokens": 100}, 100),
        ({"max_tokens_per_gpu": 65536}, (), {}, 8192),
        ({"flags": {"--context-parallel-size": 2.0}}, (), {}, 16384),
        ({"flags": {"context_parallel_size": "8"}}, (), {}, 65536),
        ({}, ("--context-parallel-size", "4"), {}, 32768),
    ],
)
def test_context_of_a_run(
    trainer: dict[str, Any], extra: tuple[str, ...], rollout: dict[str, Any], expected: int
) -> None:
    assert TRAINER.resolve(config_of(rollout, **trainer), extra).rollout.context_tokens == expected


@pytest.mark.parametrize(
    ("rollout", "seconds", "refused"),
    [
        ({}, 3600, False),
        ({}, 1799, True),
        ({}, 1800, False),
        ({"rollout_timeout": 3000}, 3600, True),
        ({"patience": 2500}, 3600, True),
        ({"reward_timeout": 2000}, 3600, True),
    ],
)
def test_stall_timeout_outlasts_a_silent_rollout(rollout: dict[str, float], seconds: float, *, refused: bool) -> None:
    config = config_of(rollout, cluster={"stall_timeout": seconds})
    with pytest.raises(ConfigError, match="stall_timeout") if refused else nullcontext():
        TRAINER.resolve(config, ())


def test_section_of_the_checkout_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"\$\.trainer\.slime"):
        TRAINER.resolve(config_of({}, slime={"pth": "x"}), ())


@pytest.mark.parametrize("name", OWNED)
def test_option_that_orl_sets_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name} is set by {OWNED[name]}")):
        refuse_by_name(["--eps-clip", name])


def test_plain_rows_may_have_a_function_of_their_own() -> None:
    refuse_by_name([GENERATE], plain=True)
    with pytest.raises(ConfigError, match="--prompt-data"):
        refuse_by_name([GENERATE, "--prompt-data"], plain=True)


CONFIG = decode_config(
    {"environments": {"A/B": {"eval_splits": ["test", "hard"]}, "C/D": {"eval_splits": ["test"]}, "E/F": {}}}, "test"
)


def task(environment: str, split: str, index: int) -> Task:
    return Task(env_name=environment, deployment_name=environment, split=split, index=index)


def run_in(folder: Path) -> Run:
    return Run(config=CONFIG, folder=folder, task_data=folder / "t", eval_data=folder / "eval_tasks.jsonl")


def test_dry_run_names_the_configured_sets(tmp_path: Path) -> None:
    options = eval_options(run_in(tmp_path))
    assert options[::2] == ("A/B/test", "A/B/hard", "C/D/test")
    assert len(set(options[1::2])) == 3
    assert not list(tmp_path.iterdir())
    assert eval_options(Run(config=CONFIG, folder=tmp_path, task_data=tmp_path)) == ()


def test_each_set_has_its_tasks_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    tasks = [task("C/D", "test", 1), task("A/B", "hard", 2), task("C/D", "test", 3)]
    (tmp_path / "eval_tasks.jsonl").write_bytes(b"".join(msgspec.json.encode(row_of(one)) + b"\n" for one in tasks))
    write_eval_sets(run)
    options = eval_options(run)
    assert options[::2] == ("A/B/hard", "C/D/test")
    assert [list(read_tasks(path, CONFIG)) for path in options[1::2]] == [[tasks[1]], [tasks[0], tasks[2]]]


def written(path: Path, turns: int) -> str:
    path.write_text(f"environments: {{A/B: {{max_turns: {turns}}}}}\n", encoding="utf-8")
    return str(path)


def test_variables_name_the_file_ours_before_the_cookbooks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ORL_CONFIG", "TRAIN_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="ORL_CONFIG"):
        worker.config_of(Namespace())
    monkeypatch.setenv("TRAIN_CONFIG", written(tmp_path / "theirs.yaml", 3))
    assert worker.config_of(Namespace()).environments["A/B"].max_turns == 3
    monkeypatch.setenv("ORL_CONFIG", written(tmp_path / "ours.yaml", 5))
    assert worker.config_of(Namespace()).environments["A/B"].max_turns == 5
    assert (
        worker.config_of(Namespace(orl_config=written(tmp_path / "option.yaml", 7))).environments["A/B"].max_turns == 7
    )
