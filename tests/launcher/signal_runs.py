"""Send signals to `orl` at seeded moments of each stage and judge what is left.

    just nightly signals --seed 1

Each run is a fork of this process, which has torch loaded already: what takes a minute takes seconds, and the
signals meet the same code. Each run is bounded in time, and so is their number. A line tells each run, the last one
the sum. Exit code 1 where a signal is lost, a process is left or a file is torn.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import cycle, islice, product
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.launcher.synthetic import make_run
from tests.slime.test_launch import checkpoint as shape
from tests.two_pythons.environment import make_environment

MARK = "ORL_SIGNAL_RUN"  # a variable that every process of a run inherits
SECONDS = 120.0  # for a run to come to its stage, and again to end after the signal
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOADED = (
    "torch",
    "openreward",
    "rich.progress",
    "orl_local.run",
    "orl_local.engine.in_process_engine",
    "orl_local.rank",
)
CONFIG = """\
environments:
  playground/GuessNumber: {{splits: [train], eval_splits: [test], max_turns: 2, num_samples: 4{base_url}}}
rollout: {{turn_tokens: 4, context_tokens: 1024}}
eval: {{max_tasks: 2}}
trainer:
  {{backend: local, model: {model}, num_rollout: 2, rollout_batch_size: 2, n_samples: 2, lr: 1e-3, save_interval: 1}}
"""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of a command, which begins when `begins` holds in the run's folder and lasts about `seconds`."""

    name: str
    command: tuple[str, ...]
    begins: Callable[[Path], bool]
    seconds: float


def at_once(_: Path) -> bool:
    return True


def there(name: str, folder: Path) -> bool:
    return any(folder.glob(name))


def measured(rows: int, folder: Path) -> bool:
    path = folder / "runs/run/metrics.jsonl"
    return path.is_file() and path.read_bytes().count(b"\n") >= rows


TRAIN = ("train", "local", "--config", "config.yaml", "--name", "run")
ROLLOUT = ("rollout", "--config", "config.yaml", "--name", "run", "--samples", "8")
SLIME = (
    *("train", "slime", "--config", "slime.yaml", "--task-data", "given.jsonl", "--model", "shape", "--name", "run"),
    *("--python", "../env/bin/python3", "--num-gpus", "1", "--model-args", "qwen3-0.6B"),
)
UPLOAD = ("upload", "left", "--set", "rollout.upload=true")
STAGES = (
    Stage(name="train: training", command=TRAIN, begins=partial(measured, 1), seconds=1.5),
    Stage(name="train: saving", command=TRAIN, begins=partial(there, "runs/run/checkpoint.unfinished"), seconds=0.1),
    Stage(name="train: start", command=TRAIN, begins=at_once, seconds=1),
    Stage(name="train: measuring", command=TRAIN, begins=partial(there, "runs/run/journal-*"), seconds=1),
    Stage(name="train: second step", command=TRAIN, begins=partial(measured, 2), seconds=0.5),
    Stage(name="train: report", command=TRAIN, begins=partial(there, "runs/run/checkpoint"), seconds=1),
    Stage(name="train: tasks", command=TRAIN, begins=partial(there, "runs/run"), seconds=0.5),
    Stage(name="train: loading", command=TRAIN, begins=partial(there, "runs/run/eval_tasks.jsonl"), seconds=1),
    Stage(name="rollout", command=ROLLOUT, begins=partial(there, "runs/run/journal-*"), seconds=1),
    Stage(name="prepare", command=("prepare", "--config", "served.yaml", "--output", "t"), begins=at_once, seconds=4),
    Stage(name="slime: asking", command=SLIME, begins=partial(there, "runs/run"), seconds=2),
    Stage(name="slime: training", command=SLIME, begins=partial(there, "runs/run/seen.json"), seconds=0.5),
    Stage(name="upload", command=UPLOAD, begins=at_once, seconds=3),
    Stage(name="show", command=("show", "left"), begins=at_once, seconds=2),
    Stage(name="doctor", command=("doctor", "--config", "served.yaml"), begins=at_once, seconds=6),
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The end of one run. `late` if it had ended before the signal was sent."""

    said: str
    late: bool = False
    faults: tuple[str, ...] = ()


def play(stage: Stage, number: signal.Signals, *, twice: bool, folder: Path, chance: random.Random) -> Result:
    """Run the command of `stage` in `folder`, send the signal in it, and judge the end."""
    delays = chance.uniform(0, stage.seconds), chance.uniform(0.3, 1.0)
    child = begin(stage.command, folder)
    ends = time.monotonic() + SECONDS
    code = None
    while code is None and not stage.begins(folder):
        assert time.monotonic() < ends, f"{stage.name} never began: {(folder / 'log').read_text('utf-8')}"
        time.sleep(0.002)
        code = ended(child, 0)
    code = ended(child, delays[0]) if code is None else code
    code = ended(child, SECONDS) if code is None and exiting(child) else code
    said = f"{stage.name}, {number.name}{' twice' if twice else ''} after {delays[0]:.2f} s"
    if code is not None:
        return Result(said=f"{said}: it ended before with {code}", late=True)
    os.kill(child, number)
    sent = time.monotonic()
    code = ended(child, delays[1])
    if twice and code is None:
        os.kill(child, number)
    code = ended(child, SECONDS) if code is None else code
    took = time.monotonic() - sent
    faults = [*judged(stage.command, code, number, folder), *left(folder)]
    if code is None:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return Result(said=f"{said}: {code}, {took:.1f} s {state(folder)}", faults=tuple(faults))


def begin(command: Sequence[str], folder: Path) -> int:
    """Fork a process that runs `command` as the console script does."""
    child = os.fork()
    if child:
        return child
    with suppress(BaseException):
        os.setsid()
        os.chdir(folder)
        log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.environ[MARK] = str(folder)
        sys.argv[1:] = command
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        return_code = 1
        try:
            import_module("orl_launcher.main").program()
        except SystemExit as end:
            return_code = int(end.code or 0)
        except KeyboardInterrupt:
            return_code = 130
        sys.stdout.flush()
        os._exit(return_code)
    os._exit(99)


def ended(child: int, seconds: float) -> int | None:
    """The exit code of `child`, awaited for so long; None if it still runs."""
    ends = time.monotonic() + seconds
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= ends:
            return None
        time.sleep(0.005)


def exiting(child: int) -> bool:
    """Tell whether the kernel takes `child` apart, which takes a while: a signal does nothing any more."""
    return bool(int(Path(f"/proc/{child}/stat").read_text("utf-8").rpartition(")")[2].split()[6]) & 4)  # PF_EXITING


def judged(command: Sequence[str], code: int | None, number: signal.Signals, folder: Path) -> list[str]:
    """Return what is wrong with the exit code, the weights, the journal or the summary."""
    from orl_rollout.episodes.journal import read_journal
    from transformers import AutoModelForCausalLM

    faults: list[str] = []
    run = folder / "runs/run"
    before = code == -number and not run.exists()  # the handlers were not there yet, and nothing was begun
    if code != 128 + number and not before:
        faults.append(f"LOST: exit code {code}")
    weights = (*run.glob("checkpoint"), *run.glob("trainer/checkpoint-*"))
    for checkpoint in weights if "local" in command else ():  # the checkpoint of the stand-in for slime has none
        try:
            AutoModelForCausalLM.from_pretrained(checkpoint)
        except (OSError, ValueError, RuntimeError) as exc:
            faults.append(f"TORN: {checkpoint.name}: {exc}")
    if run.is_dir():
        list(read_journal(run))
    return [*faults, *misreported(run, command[1])] if command[0] == "train" else faults


def misreported(run: Path, trainer: str) -> list[str]:
    """Return the false statements in the summary of a training."""
    faults: list[str] = []
    if (run / "config.json").is_file() and not (run / "summary.json").is_file():
        faults.append("TORN: no summary")
    if (run / "summary.json").is_file():
        summary = json.loads((run / "summary.json").read_bytes())
        whole = (
            trainer == "local" and summary["steps"] == 2 and (run / "checkpoint").is_dir() and "error" not in summary
        )
        if not summary.get("interrupted") and not whole:
            faults.append(f"TORN: the summary speaks of a finished run: {summary}")
        if trainer == "local" and summary["steps"] and not (run / "checkpoint").is_dir():
            faults.append("TORN: steps were made, and no weights are there")
        if whole and not summary.get("interrupted") and not (run / "report.html").is_file():
            faults.append("TORN: a finished run has no report")
    return faults


def left(folder: Path) -> list[str]:
    """The processes of the run that still live, after a moment to end: a server sees that its parent is gone."""
    ends = time.monotonic() + 10
    while found := [path.name for path in Path("/proc").glob("[0-9]*") if belongs(path, folder)]:
        if time.monotonic() > ends:
            for process in found:
                os.kill(int(process), signal.SIGKILL)
            return [f"LEFT: {len(found)} processes"]
        time.sleep(0.1)
    return []


def belongs(process: Path, folder: Path) -> bool:
    try:
        return f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def state(folder: Path) -> str:
    run = folder / "runs/run"
    names = ("summary.json", "checkpoint", "report.html")
    return f"[{', '.join(name for name in names if (run / name).exists())}]"


def furnish(folder: Path, url: str, model: Path) -> None:
    """Make the working folder of a run: configurations, tasks, and the folder of an earlier run."""
    folder.mkdir()
    for name, base_url in (("config.yaml", f", base_url: '{url}'"), ("served.yaml", "")):
        (folder / name).write_text(CONFIG.format(base_url=base_url, model=model), "utf-8")
    (folder / "slime.yaml").write_text("environments: {Org/Env: {}}\n", "utf-8")
    (folder / "given.jsonl").write_text('{"prompt": "?", "label": ""}\n', "utf-8")
    shape(folder / "shape")
    make_run(folder / "left")


def main(argv: Sequence[str]) -> int:
    from tests.local.checkpoints import write_checkpoint

    parser = argparse.ArgumentParser(prog="python -m tests.launcher.signal_runs")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="stages whose name begins like this")
    parser.add_argument("--seconds", type=float, default=3600, help="begin no run after this")
    chosen = parser.parse_args(argv)
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for module in LOADED:
        import_module(module)
    from orl_playground.server import serving

    stages = [stage for stage in STAGES if stage.name.startswith(chosen.only)]
    chance = random.Random(chosen.seed)
    began, results = time.monotonic(), list[Result]()
    with ExitStack() as stack:
        root = Path(stack.enter_context(TemporaryDirectory()))
        write_checkpoint(root / "model")
        [url] = stack.enter_context(serving())
        make_environment(root / "env", "slime")
        silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # a platform, or a Ray, that says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        os.environ |= {"RAY_ADDRESS": address, "OPENREWARD_API_URL": f"http://{address}", "STAND_IN_GPUS": "1"}
        os.environ |= {"STAND_IN_ENDS": "waits", "OPENREWARD_API_KEY": "or-key-0123456789"}
        plans = cycle(product((False, True), SIGNALS, stages))
        for index, (twice, number, stage) in enumerate(islice(plans, chosen.runs)):
            if time.monotonic() - began > chosen.seconds:
                break
            folder = root / str(index)
            furnish(folder, url, root / "model")
            result = play(stage, number, twice=twice, folder=folder, chance=chance)
            results.append(result)
            print(f"{index + 1}: {result.said} {'; '.join(result.faults)}", flush=True)
            if result.faults:
                print((folder / "log").read_text("utf-8"), flush=True)
    faults = [fault for result in results for fault in result.faults]
    count = {kind: sum(fault.startswith(kind) for fault in faults) for kind in ("LOST", "LEFT", "TORN")}
    late = sum(result.late for result in results)
    print(f"{len(results)} runs, {late} ended before their signal: {count}, {time.monotonic() - began:.0f} s")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
