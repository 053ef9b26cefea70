"""Runs of every kind as their folders look, with hostile text in each field, and a viewer that serves them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp.test_utils import TestClient, TestServer
from msgspec import structs
from orl_core.limits import TrainOn
from orl_core.messages import Action, FailureKind, ParseFailure, Span, TextBlock, ToolCall, ToolResult, text_message
from orl_core.task import Task
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory
from orl_launcher.view.server import Viewer
from orl_rollout.episodes.journal import encode_entry, frame
from orl_rollout.run_folder import metrics_log

from tests.kit.journalled import entry_of, trajectory_of, write
from tests.kit.pages import HOSTILE
from tests.launcher.synthetic import make_run

TOKEN = "token-of-the-test"


def make_cluster_run(folder: Path) -> Path:
    """A run of slime or miles: updates in rows of their own, and no checkpoint."""
    make_run(folder, steps=3, finished=False)
    tree = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tree["trainer"]["backend"] = "slime"
    (folder / "config.json").write_text(json.dumps(tree), encoding="utf-8")
    for step in range(1, 4):
        metrics_log.append(folder / "metrics.jsonl", "update", step, {"loss": 0.5 / step, "entropy": 1.0}, seconds=0)
    return folder


def make_rollouts(folder: Path) -> Path:
    """Write the folder of `orl rollout`: a journal, one evaluation, and a summary."""
    folder.mkdir(parents=True)
    write(folder, *(trajectory_of(key=f"r{number}") for number in range(3)))
    metrics_log.append(folder / "metrics.jsonl", "eval", 0, {"a/b/success": 0.5, "a/b/rollouts": 3.0}, seconds=0)
    (folder / "summary.json").write_text('{"rollouts": 3}', encoding="utf-8")
    (folder / "rollout_tasks.jsonl").touch()
    return folder


def branching() -> Trajectory:
    """An agent's episode with two branches, with reasoning that does not train."""
    (turn,) = trajectory_of().turns
    first = structs.replace(turn, messages=(text_message("user", "Say it."),))
    second = structs.replace(turn, continues=0)
    fork = structs.replace(turn, continues=0, spans=(Span(part="reasoning", start=0, end=1),))
    limits = structs.replace(trajectory_of().job.limits, train_on=msgspec.convert({"reasoning": False}, TrainOn))
    job = structs.replace(trajectory_of().job, limits=limits)
    return structs.replace(trajectory_of(), job=job, turns=(first, second, fork))


def hostile() -> Trajectory:
    """An episode with hostile text in every field that takes text."""
    call = ToolCall(name=HOSTILE, arguments={HOSTILE: HOSTILE})
    failure = ParseFailure(kind=FailureKind.INVALID_JSON, message=HOSTILE, text=HOSTILE, name=HOSTILE)
    made = trajectory_of(HOSTILE, key=HOSTILE, calls=(call, failure))
    (turn,) = made.turns
    results = tuple(ToolResult(name=HOSTILE, content=(TextBlock(text=HOSTILE),), reward=1.0) for _ in range(2))
    turn = structs.replace(turn, action=Action(text=HOSTILE, reasoning=HOSTILE, calls=(call, failure)), results=results)
    task = Task(env_name=HOSTILE, deployment_name=HOSTILE, split=HOSTILE, task_spec={"n": HOSTILE})
    return structs.replace(
        made,
        job=RolloutSpec(task=task, rollout_id=HOSTILE),
        messages=(text_message("user", HOSTILE),),
        turns=(turn,),
        stop_reason=StopReason.ERROR,
        error=HOSTILE,
    )


def make_hostile(folder: Path) -> Path:
    """A run whose files hold hostile text."""
    make_run(folder, steps=2, finished=False)
    tree = {"environments": {HOSTILE: {}}, "trainer": {"backend": HOSTILE, "model": HOSTILE}, "rollout": {}}
    (folder / "config.json").write_text(json.dumps(tree), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps({"error": HOSTILE, "versions": {HOSTILE: HOSTILE}}), "utf-8")
    for kind in ("train", "eval"):
        for step in (1, 2):
            name = HOSTILE.replace("/", "|")
            row = {f"a/{name}/success": 0.5, f"a/{name}/rollouts": 2.0, HOSTILE: 1.0}
            metrics_log.append(folder / "metrics.jsonl", kind, step, row, seconds=1)
    (folder / "tokenizer.json").unlink(missing_ok=True)
    (folder / "checkpoint" / "tokenizer.json").unlink()
    return add(folder, hostile())


def add(folder: Path, *trajectories: Trajectory, name: str = "9") -> Path:
    """Append episodes to a journal of the run."""
    with (folder / f"journal-{name}.jsonl.zst").open("ab") as file:
        for trajectory in trajectories:
            file.write(frame(encode_entry(entry_of(trajectory))))
    return folder


@asynccontextmanager
async def viewed(root: Path) -> AsyncGenerator[TestClient]:
    """A client of a viewer of the runs at `root`."""
    async with TestClient(TestServer(Viewer(root, TOKEN).app(), host="127.0.0.1")) as client:
        yield client
