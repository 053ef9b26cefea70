"""slime's distributed fully async rollout: our hooks run in a process of each node. Two nodes of one machine play."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from orl_rollout.episodes.journal import journal_files, read_journal
from orl_rollout.run_folder import turn_count
from orl_rollout.run_folder.metrics_log import read
from orl_slime.hooks import log_rollout
from orl_testing import Fault, FaultKind

from tests.slime import episode
from tests.slime.host import arguments
from tests.slime.miniature import Sample
from tests.slime.node import STEP
from tests.slime.playing import engine
from tests.two_pythons.environment import ROOT

pytestmark = pytest.mark.slime
SECONDS = 600


@contextmanager
def node(folder: Path, url: str, config: dict[str, Any], **changes: Any) -> Iterator[Callable[[], dict[str, Any]]]:
    """A process that plays, with `changes` of slime's arguments, and what it tells at its end."""
    folder.mkdir()
    paths = [changes.pop("hf_checkpoint"), str(episode.make_tasks(folder / "tasks.jsonl", 40))]
    own = {"first": changes.pop("first", 0), "slots": changes.pop("slots", 4), "changes": changes}
    spec, told = folder / "spec", folder / "answer"
    spec.write_text(json.dumps({"paths": paths, "url": url, "config": config, **own}), encoding="utf-8")
    search = os.pathsep.join([str(ROOT), *(path for path in sys.path if path)])
    command = [sys.executable, "-m", "tests.slime.node", str(spec), str(told)]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": search})

    def answer() -> dict[str, Any]:
        assert process.wait(SECONDS) == 0
        return json.loads(told.read_text(encoding="utf-8"))

    try:
        yield answer
    finally:
        process.kill()
        process.wait()


async def test_two_nodes_leave_one_run_and_a_third_ends_its_own(environment: str, checkpoint: Path, tmp_path: Path):
    """Journal, turns and metrics know every rollout once, with slime's number of the batch."""
    run = tmp_path / "run"
    own = {"hf_checkpoint": str(checkpoint), "dynamic_sampling_filter_path": "orl_slime.hooks.has_signal"}
    config, dead = (episode.settings(url) for url in (environment, "http://127.0.0.1:9"))
    refusal = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)
    with (
        engine(checkpoint, [refusal]) as server,
        node(tmp_path / "one", server.url, config, orl_folder=str(run), **own) as one,
        node(tmp_path / "two", server.url, config, first=20, orl_folder=str(run), **own) as two,
        node(tmp_path / "three", server.url, dead, slots=80, orl_folder=str(tmp_path / "other"), **own) as three,
    ):
        *answers, broken = [await asyncio.to_thread(answer) for answer in (one, two, three)]
        requests = len(server.requests)
    assert [answer["ended"] for answer in answers] == ["", ""]
    assert "of the last 64 rollouts ended in ERROR" in broken["ended"], "slime hands it on to the trainer"
    dropped = [reason for answer in answers for reason in answer["dropped"]]
    assert dropped == ["too_few_train"], "the group of the request that was refused"
    samples = [Sample(rollout_id=name, metadata=data) for answer in answers for name, data in answer["samples"]]
    entries = list(read_journal(run))
    assert len({entry.key for entry in entries}) == len(entries) == len(samples) + 2
    assert {entry.step for entry in entries} == {STEP + 1}
    assert len(journal_files(run)) == 2
    assert all(f"-{socket.gethostname()}-" in file.name for file in journal_files(run))
    turns = turn_count.read(run)
    assert (turns.answered, turns.open) == (requests - 1, 0)
    manager = arguments(checkpoint, tmp_path / "one" / "tasks.jsonl", server.url, config, orl_folder=str(run))
    log_rollout(STEP, manager, samples, {}, 1.0)
    (row,) = read(run / "metrics.jsonl")
    assert (row.step, row.overall("rollouts"), row.overall("success")) == (STEP + 1, len(samples), 0.5)
