"""`orl train TRAINER --dry-run` with a second environment: what it prints, what it refuses."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from orl_launcher.main import main
from orl_launcher.trainers import WOULD_NOT_START

from tests.two_pythons.environment import ROOT

WHODUNIT = str(ROOT / "configs" / "whodunit.yaml")
APART = ["--async", "--actor-gpus", "4", "--rollout-gpus", "4"]  # GPUs of their own for training and for engines
# Options of the trainer, and the default of orl that would overrule each.
OVERRULED = [
    (["--", "--num-epoch", "2"], "--num-rollout"),
    (["--", "--micro-batch-size", "2"], "--use-dynamic-batch-size"),
    ([*APART, "--", "--use-rollout-logprobs"], "--use-tis"),
]
# What a machine may have set, and tests must not see.
MACHINE = (
    *("WANDB_API_KEY", "OPENREWARD_API_KEY", "OPENAI_API_KEY", "CUDA_DEVICE_MAX_CONNECTIONS", "TENSORBOARD_DIR"),
    *("ORL_TRAINER_PYTHON", "PYTHONPATH", "MASTER_ADDR", "MILES_HOST_IP"),
    *(name for proxy in ("no_proxy", "http_proxy", "https_proxy", "all_proxy") for name in (proxy, proxy.upper())),
)


def alone(monkeypatch: pytest.MonkeyPatch, folder: Path, *others: str) -> Path:
    """Work in `folder`, without what a machine may have set, nor the variables `others`."""
    monkeypatch.chdir(folder)
    for name in (*MACHINE, *others):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_ADDRESS", "local")  # a cluster of another test must not be joined
    monkeypatch.setenv("NETRC", str(folder / "none"))
    return folder


def planned(capsys: pytest.CaptureFixture[str], trainer: str, python: str, *argv: str, config: str = WHODUNIT) -> str:
    """Return what a dry run prints. Its exit code tells whether the run would start."""
    return shown(capsys, _words(trainer, python, argv, config))


def refused(capsys: pytest.CaptureFixture[str], trainer: str, python: str, *argv: str, config: str = WHODUNIT) -> str:
    """The one line with which a dry run ends."""
    return ended(capsys, _words(trainer, python, argv, config))


def shown(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> str:
    """Return what `orl` prints with these `words` of a dry run."""
    code = main(words)
    plan, told = capsys.readouterr()
    assert plan, told
    assert code == (f"# {WOULD_NOT_START}: " in plan)
    return plan


def ended(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> str:
    """Return the one line with which a refused `orl` ends."""
    assert main(words) != 0
    (line,) = capsys.readouterr().err.splitlines()
    return line


@contextmanager
def cluster(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """The stand-in's one node and its GPU, under an address where something listens, with the platform's key."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.setenv("STAND_IN_GPUS", "1")
        monkeypatch.setenv("OPENREWARD_API_KEY", "orl-secret-key")
        yield


def plain(folder: Path) -> str:
    """Write a configuration of plain rows alone into `folder`, and such a file, rows.jsonl. Return its path."""
    (folder / "rows.jsonl").write_text('{"prompt": "What is 2 + 2?", "label": "4"}\n', encoding="utf-8")
    (folder / "plain.yaml").write_text("environments: {}\ntrainer: {task_data: rows.jsonl}\n", encoding="utf-8")
    return str(folder / "plain.yaml")


def held_out(folder: Path) -> str:
    """Write the configuration WHODUNIT with held-out tasks into `folder`; return its path."""
    file = folder / "held-out.yaml"
    text = Path(WHODUNIT).read_text(encoding="utf-8")
    file.write_text(text.replace("splits: [train]", "splits: [train]\n    eval_splits: [test]"), encoding="utf-8")
    return str(file)


def leaves_out(capsys: pytest.CaptureFixture[str], trainer: str, python: str, argv: Sequence[str], rival: str) -> None:
    """Check that a plan has `rival`, a default of orl, and lacks it with the trainer's options of `argv`."""
    plan = planned(capsys, trainer, python, *argv)
    assert argv[-1] in plan
    assert rival not in plan
    assert rival in planned(capsys, trainer, python, *argv[: argv.index("--")])


def trained(trainer: str, python: str, folder: Path, *argv: str) -> int:
    """The exit code of a run with `folder`/model on no GPU at all, in the stand-in. Its tasks are given."""
    path = folder / "elsewhere.yaml"
    path.write_text("environments: {Org/Env: {}}\nsecrets: {token: hush-hush}\n", encoding="utf-8")
    (folder / "tasks.jsonl").write_text('{"prompt": "?", "label": ""}\n', encoding="utf-8")
    options = ["--config", str(path), "--task-data", "tasks.jsonl", "--model", "model", "--num-gpus", "1"]
    return main(["train", trainer, *options, "--python", python, "--name", "run", *argv])


def words_of(plan: str) -> list[str]:
    """The command of a plan, as a shell would read it."""
    return shlex.split(plan.replace("\\\n", " "), comments=True)


def _words(trainer: str, python: str, argv: tuple[str, ...], config: str) -> list[str]:
    return ["train", trainer, "--config", config, "--python", python, "--name", "run", "--dry-run", *argv]
