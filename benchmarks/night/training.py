"""`orl train local`: a disk that fills in a checkpoint, an engine with frozen weights, results without any reward.

The engine is the stand-in at an address, which computes with the weights that it was told to load. A tiny random model
trains, so that a run takes seconds once its libraries are loaded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.night.disk import small_disk
from benchmarks.night.driver import counts
from benchmarks.night.plan import configuration
from benchmarks.night.processes import Program, program, until
from benchmarks.night.scenario import Night, last_line
from benchmarks.night.verdict import Verdict, entries_of

ORL = (sys.executable, "-c", "from orl_launcher.main import program; program()")
STEPS, GROUPS, MEMBERS = 6, 2, 4
RATE = 4e-5
RUN_SECONDS = 240.0
DISK_BYTES = 256 << 20
LEFT_BYTES = 2 << 20  # less than the weights of a checkpoint, and enough for a summary
UNREWARDED = ("unrewarded", "no signal", "no reward")
MORE = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "COLUMNS": "200"}


class Training:
    """Runs of `orl train local` in the working folder `home`, whose log is `log`."""

    def __init__(self, night: Night, home: Path, log: Path, config: dict[str, Any]) -> None:
        self.home, self.log = home, log
        trainer = {
            **{"backend": "local", "model": str(night.checkpoint), "seed": night.seed, "save_interval": 1, "lr": RATE},
            **{"num_rollout": STEPS, "rollout_batch_size": GROUPS, "n_samples": MEMBERS},
        }
        whole = {**config, "trainer": trainer}
        (home / "night.yaml").write_text(json.dumps(whole), encoding="utf-8")

    def folder(self, name: str) -> Path:
        """Return the folder of a run."""
        return self.home / "runs" / name

    @contextmanager
    def run(self, name: str, engine: str, *more: str) -> Generator[Program]:
        """Start a run for the length of the block."""
        words = [*ORL, "train", "local", "--config", "night.yaml", "--name", name, "--engine", engine, *more]
        with program(words, self.log.with_name(f"{name}.log"), folder=self.home, more=MORE) as running:
            yield running

    def summary(self, name: str) -> dict[str, Any]:
        """Return the summary of a run; empty if there is none."""
        path = self.folder(name) / "summary.json"
        try:
            return json.loads(path.read_bytes()) if path.is_file() else {}
        except ValueError:
            return {}


def full_disk(night: Night) -> Verdict:
    """Fill the disk after the first whole checkpoint, then make room and continue the run."""
    verdict = Verdict(scenario="full disk in a checkpoint", planned=STEPS * GROUPS * MEMBERS)
    home = night.folder / "full-disk"
    home.mkdir()
    with (
        small_disk(home / "disk", DISK_BYTES) as disk,
        night.environment() as environment,
        night.engine(model=str(night.checkpoint)) as engine,
    ):
        training = Training(night, disk.folder, home / "log", configuration(environment.url))
        first = training.folder("first")
        with training.run("first", engine.url) as running:
            until(lambda: any(first.glob("trainer/checkpoint-*")) or running.code() is not None, RUN_SECONDS, "saved")
            disk.fill(running, LEFT_BYTES)
            kept = set(entries_of(first))
            code = running.wait(RUN_SECONDS)
        _judge_full_disk(verdict, training, running, code)
        disk.empty()
        with training.run("second", engine.url, "--load", str(first.relative_to(disk.folder))) as running:
            if running.wait(RUN_SECONDS) != 0:
                verdict.ended = 1
                verdict.notes.append(f"the resume: {last_line(running)}")
        recorded = entries_of(first)
        counted = {name for run in (recorded, entries_of(training.folder("second"))) for name in run if run[name]}
        names = {f"train/{1 + step}/{row}" for step in range(STEPS) for row in range(GROUPS * MEMBERS)}
        verdict.lost = len((names - counted) | (kept - recorded.keys()))
        verdict.wrong = sum(not any(map(counts, recorded[name])) for name in kept & recorded.keys())
        verdict.left = len(environment.ask("/night/open"))
    return verdict


def _judge_full_disk(verdict: Verdict, training: Training, running: Program, code: int | None) -> None:
    """Note what is unclear in the end of a run whose disk was full."""
    output, summary = running.output(), training.summary("first")
    unfinished = [path.name for path in training.folder("first").rglob("*unfinished*")]
    unclear = {
        "it still runs": code is None,
        "it ended with 0": code == 0,
        "a traceback": "Traceback (most recent call last)" in output,
        f"no error in summary.json, but {sorted(summary)[-3:]}": not summary.get("error"),
        f"left behind: {', '.join(unfinished)}": bool(unfinished),
    }
    found = [name for name, is_so in unclear.items() if is_so]
    verdict.unclear = int(bool(found))
    verdict.notes += [f"the first run: {last_line(running)}", *found]


def frozen_engine(night: Night) -> Verdict:
    """Train with an engine that takes every update of the weights, and computes with the first."""
    home = night.folder / "frozen"
    home.mkdir()
    with night.environment() as environment, night.engine(model=str(night.checkpoint), frozen=True) as engine:
        training = Training(night, home, home / "log", configuration(environment.url))
        return _must_end(Verdict(scenario="engine frozen"), training, engine.url)


def no_reward(night: Night) -> Verdict:
    """Train in an environment whose results carry no reward: the run may end well, but must say so."""
    home = night.folder / "no-reward"
    home.mkdir()
    with night.environment() as environment, night.engine(model=str(night.checkpoint)) as engine:
        config = configuration(environment.url)
        config["environments"]["night/Shift"]["variant"] = "unpaid"
        training = Training(night, home, home / "log", config)
        verdict = Verdict(scenario="no reward at all", planned=STEPS * GROUPS * MEMBERS)
        with training.run("run", engine.url) as running:
            code = running.wait(RUN_SECONDS)
            said = f"{running.output()} {json.dumps(training.summary('run'))}".lower()
        named = [word for word in UNREWARDED if word in said]
        verdict.went_on = int(not named)
        verdict.notes.append(f"exit code {code}, named by: {', '.join(named) or 'nothing'}")
    return verdict


def _must_end(verdict: Verdict, training: Training, engine: str) -> Verdict:
    verdict.planned = STEPS * GROUPS * MEMBERS
    with training.run("run", engine) as running:
        code = running.wait(RUN_SECONDS)
    summary = training.summary("run")
    verdict.went_on = int(not code)
    verdict.unclear = int(bool(code) and not summary.get("error"))
    verdict.notes.append(f"exit code {code} after {summary.get('steps')} steps: {last_line(running)}")
    return verdict
