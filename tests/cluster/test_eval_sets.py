"""Evaluation sets: one name and one file for each environment and split, none of them empty."""

from __future__ import annotations

from pathlib import Path

import msgspec
from orl_cluster.launch.command.eval_sets import eval_options, write_eval_sets
from orl_core.config import decode_config
from orl_core.task import Task, row_of
from orl_rollout.run_folder.contract import Run
from orl_rollout.tasks.file import read_tasks

CONFIG = decode_config(
    {"environments": {"A/B": {"eval_splits": ["test", "hard"]}, "C/D": {"eval_splits": ["test"]}, "E/F": {}}}, "test"
)


def task(environment: str, split: str, index: int) -> Task:
    return Task(env_name=environment, deployment_name=environment, split=split, index=index)


def run_in(folder: Path) -> Run:
    return Run(config=CONFIG, folder=folder, task_data=folder / "t", eval_data=folder / "eval_tasks.jsonl")


def test_dry_run_names_the_configured_sets(tmp_path: Path) -> None:  # shows F16
    options = eval_options(run_in(tmp_path))
    assert options[::2] == ("A/B/test", "A/B/hard", "C/D/test")
    assert len(set(options[1::2])) == 3
    assert not list(tmp_path.iterdir())
    assert eval_options(Run(config=CONFIG, folder=tmp_path, task_data=tmp_path)) == ()


def test_each_set_has_its_tasks_and_empty_ones_are_left_out(tmp_path: Path) -> None:  # shows A21 F16
    run = run_in(tmp_path)
    tasks = [task("C/D", "test", 1), task("A/B", "hard", 2), task("C/D", "test", 3)]
    (tmp_path / "eval_tasks.jsonl").write_bytes(b"".join(msgspec.json.encode(row_of(one)) + b"\n" for one in tasks))
    write_eval_sets(run)
    options = eval_options(run)
    assert options[::2] == ("A/B/hard", "C/D/test")
    assert [list(read_tasks(path, CONFIG)) for path in options[1::2]] == [[tasks[1]], [tasks[0], tasks[2]]]
