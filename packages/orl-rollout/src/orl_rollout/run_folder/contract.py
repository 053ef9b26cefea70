"""Types that the launcher and an adapter exchange. Adapters are entry points of `orl.trainers` and `orl.engines`.

The folder of a run holds, whichever trainer made it:

    config.json       the resolved configuration, secrets left out
    tasks.jsonl       the tasks to train on; eval_tasks.jsonl the held-out tasks
    metrics.jsonl     one JSON object a line: `step`, `kind` ("train" or "eval"), `seconds`, and metrics by name;
                      `seconds` are those of the whole step, or of its rollouts alone if the trainer is on a cluster
    journal-*.jsonl.zst   every trajectory, with its ids; uploads.json says which of them have been uploaded
    trainer.log       the output of a trainer that runs in a process of its own
    summary.json      the figures of the whole run; `interrupted: true` from the moment a signal comes
    checkpoint/       the last weights and the tokenizer, in Hugging Face's layout
    curve.png, report.html   made from the files above
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct, field, structs
from orl_core.config import RunConfig
from orl_core.errors import ConfigError

from orl_rollout.bounded_files import read_whole
from orl_rollout.loop.engine import Engine

T = TypeVar("T")


class Run(Struct, frozen=True, kw_only=True):
    """One training run. `extra` are the words after `--`, for the trainer; `facts` go into summary.json as they are.

    `python` is the Python that has the trainer, if it is another one and the user names it.

    `config.environments` are ready to be reached (a `base_url` is filled in where the launcher serves one), and
    `config.trainer.model` is a checkpoint's path or a hub's name. `started` is the monotonic clock when the command
    began, in seconds: work before the trainer starts counts to the run.
    """

    config: RunConfig
    folder: Path
    task_data: Path
    eval_data: Path | None = None
    extra: tuple[str, ...] = ()
    python: str | None = None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    started: float = field(default_factory=time.monotonic)


class Plan(Struct, frozen=True, kw_only=True):
    """Plan of a run: `command` has the lines to read or to paste into a shell.

    `problems` keep the run from starting on this machine; `notes` are what else its user should know.
    """

    command: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class SummaryFile:
    """summary.json of a run, always whole. `summary_of` makes its content of the ending, such as `error`."""

    def __init__(self, folder: Path, summary_of: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._path = folder / "summary.json"
        self._summary_of = summary_of
        self._lock = threading.Lock()
        self._ended = False

    def interrupted(self) -> None:
        """Write the file as soon as a signal comes, on any thread: there may be no time later."""
        with self._lock:
            if not self._ended:
                self._write({"interrupted": True})

    def end(self, ending: dict[str, Any]) -> None:
        """Write the file for the last time."""
        with self._lock:
            self._ended = True
            self._write(ending)

    def _write(self, ending: dict[str, Any]) -> None:
        replace(self._path, msgspec.json.format(msgspec.json.encode(self._summary_of(ending)), indent=2) + b"\n")


def replace(path: Path, content: bytes) -> None:
    """Put `content` in the place of the file `path` in one step: a death in the middle leaves the old file."""
    with _beside(path, content) as fresh:
        fresh.replace(path)


def write_new(path: Path, content: bytes) -> None:
    """Write `content` to a new file `path` in one step.

    Raises:
        FileExistsError: there is one already. It stays as it is.
    """
    with _beside(path, content) as fresh:
        path.hardlink_to(fresh)


@contextmanager
def _beside(path: Path, content: bytes) -> Generator[Path]:
    fresh = path.with_name(f".{path.name}.{threading.get_ident()}")
    try:
        fresh.write_bytes(content)
        yield fresh
    finally:
        fresh.unlink(missing_ok=True)


def dated(config: RunConfig) -> RunConfig:
    """Fix the date that chat templates show, so that every process of the run shows the same one.

    It is the configuration's, else that of the run whose checkpoint this one begins with, else today.
    """
    if config.chat_template_date is not None:
        return config
    begins_with = (config.trainer.load, config.trainer.model)
    inherited = (_date_of(Path(place)) for place in begins_with if place)
    return structs.replace(config, chat_template_date=next(filter(None, inherited), None) or date.today())


def _date_of(checkpoint: Path) -> date | None:
    """Return the date of the run that `checkpoint` belongs to; None where it belongs to none."""
    for folder in (checkpoint, checkpoint.parent):
        try:
            tree: object = msgspec.json.decode(read_whole(folder / "config.json"))
            if isinstance(tree, dict) and "chat_template_date" in tree:
                return msgspec.convert(tree["chat_template_date"], date | None)
        except (OSError, ConfigError, msgspec.MsgspecError):
            continue
    return None


class Trainer(Protocol):
    """The entry point of an adapter, a module with two functions: `orl.trainers = {trl = "orl_trl"}`."""

    def train(self, run: Run) -> None:
        """Train to the end, writing the files of the run's folder.

        Raises:
            OrlError: the run cannot start or was ended; one line says why.
        """
        ...

    def plan(self, run: Run) -> Plan:
        """Return what `train` would do. Nothing is written, and the folder need not exist.

        Raises:
            OrlError: the run could not start; one line says why.
        """
        ...


class LocalEngine(Protocol):
    """The entry point `orl.engines` of a package that runs a model in this process."""

    def __call__(self, model: str, play: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        """Load the checkpoint `model`, answer `play`'s requests on this thread, and return its result.

        `play` runs on an event loop of its own, on another thread.

        Raises:
            ConfigError: the model cannot be loaded.
        """
        ...
