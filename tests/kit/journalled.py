"""Records for the tests of the journal and of uploads: a configuration, outcomes, files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orl_core.config import RunConfig, decode_config
from orl_core.messages import Action, TextBlock, ToolCall, ToolResult, text_message
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn
from orl_rollout.episodes.journal import Entry, encode_entry, frame, journal_files
from orl_rollout.results.outcome import Outcome, outcome_of

from tests.kit.secrets import NO_SECRETS

CONFIG = decode_config({"environments": {"a/b": {}}}, "test")


def config_of(**fields: Any) -> RunConfig:
    tree = {
        "environments": {"a/b": {}},
        "trainer": {"model": "some/model", "lr": 1e-6},
        "openreward_run_name": "my-run",
        **fields,
    }
    return decode_config(tree, "test")


def trajectory_of(
    text: str = "ok", key: str = "r1", *, ids: tuple[int, ...] = (5, 6), turns: int = 1, calls: Any = None
) -> Trajectory:
    extras = {"experts": object()}
    generation = Generation(token_ids=ids, logprobs=(-0.5,) * len(ids), finish_reason="stop", extras=extras)
    calls = calls if calls is not None else (ToolCall(name="say", arguments={"text": text}),)
    results = tuple(ToolResult(name="say", content=(TextBlock(text=text),), reward=1.0, finished=True) for _ in calls)
    action = Action(text=text, reasoning="hm", calls=calls)
    turn = Turn(observation=(1, 2, 3), generations=(generation,), action=action, results=results)
    spec = {"n": 1, "none": None}
    task = Task(env_name="a/b", deployment_name="a/b", environment_name="b", index=3, task_spec=spec)
    return Trajectory(
        job=RolloutSpec(task=task, rollout_id=key, sampling={"temperature": 0.7, "odd": object}),
        messages=(text_message("user", "Say it."),),
        turns=(turn,) * turns,
        stop_reason=StopReason.FINISHED,
        seconds=2.5,
    )


def outcome(*args: Any, **settings: Any) -> Outcome:
    return outcome_of(trajectory_of(*args, **settings), CONFIG.environments["a/b"], NO_SECRETS)


def entry_of(trajectory: Trajectory) -> Entry:
    return Entry(key=trajectory.job.rollout_id, time=1.7e9, reward=0.5, success=False, step=9, trajectory=trajectory)


def write(folder: Path, *trajectories: Trajectory, name: str = "1") -> Path:
    """Append entries to the file `name` of the journal in `folder`; the file."""
    path = folder / f"journal-{name}.jsonl.zst"
    with path.open("ab") as file:
        for trajectory in trajectories:
            file.write(frame(encode_entry(entry_of(trajectory))))
    return path


def only_file(folder: Path) -> Path:
    (path,) = journal_files(folder)
    return path
