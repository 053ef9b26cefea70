"""summary.json of a run: its figures, and how it ended. Whichever trainer trains, it is written here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs
from orl_core import OrlError, RunConfig, boundary

from orl_rollout.edge import interrupt
from orl_rollout.edge.files import replace, write_new
from orl_rollout.logs import logger_of
from orl_rollout.run_folder.judges import no_signal
from orl_rollout.run_folder.metrics_log import MetricsRow, mean, read

logger = logger_of("orl")
BROKE_OFF = "it broke off; the traceback says where"  # the error of a run that a bug ended


class Summary(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The figures of a run. None is a figure that is not known, UNSET one that this run does not have.

    `before` and `after` are the first and the last evaluation of held-out tasks; success is a share of the episodes
    that were judged. `no_signal` says that the last steps had nothing to learn from, and why.
    `overlap` counts the held-out tasks that are trained on, too.
    `resumed_from` is the checkpoint that the run continues, after `resumed_step` steps.
    """

    env: str
    model: str | None
    model_params: int | UnsetType = UNSET
    steps: int
    success_before: float | UnsetType | None = UNSET
    success_after: float | UnsetType | None = UNSET
    seconds_per_step: float | UnsetType | None = UNSET
    rollout_seconds_per_step: float | UnsetType | None = UNSET  # where only the rollouts of a step are timed
    rollouts: int | UnsetType = UNSET
    seconds_total: float | UnsetType = UNSET
    seed: int
    versions: dict[str, str] | UnsetType = UNSET
    command: Sequence[str] | UnsetType = UNSET
    seconds_warm_start: float | UnsetType = UNSET
    warm_start_cached: bool | UnsetType = UNSET
    resumed_from: str | UnsetType = UNSET
    resumed_step: int | UnsetType = UNSET
    interrupted: bool | UnsetType = UNSET
    error: str | UnsetType = UNSET
    no_signal: str | UnsetType = UNSET
    overlap: int | UnsetType = UNSET

    @classmethod
    def of(cls, config: RunConfig, rows: Sequence[MetricsRow]) -> Self:
        """Make the figures of the run of `config` from the `rows` of its metrics.jsonl."""
        evaluations = [row for row in rows if row.kind == "eval"]
        train = [row for row in rows if row.kind == "train"]
        first = evaluations[0] if evaluations else None
        last = evaluations[-1] if len(evaluations) > 1 else None
        return cls(
            env=", ".join(config.environments),
            model=config.trainer.model,
            steps=max((row.step for row in train), default=0),
            success_before=first and first.overall("success"),
            success_after=last and last.overall("success"),
            seconds_per_step=mean(row.seconds for row in train),
            rollouts=int(sum(row.overall("rollouts") or 0 for row in rows)),
            seed=config.trainer.seed,
            no_signal=silent.text if (silent := no_signal(rows)) else UNSET,
        )

    def encode(self) -> bytes:
        """Return the content of summary.json."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


class SummaryFile:
    """summary.json while a trainer runs, always whole. `summary_of` makes it of what is known so far."""

    def __init__(self, folder: Path, summary_of: Callable[[], Summary]) -> None:
        self._path = folder / "summary.json"
        self._summary_of = summary_of
        self._lock = threading.Lock()
        self._ended = False

    def interrupted(self) -> None:
        """Write what there is as soon as a signal comes, on any thread: there may be no time later."""
        with self._lock:
            if not self._ended:
                self._write({"interrupted": True})

    def end(self, ending: dict[str, Any]) -> None:
        """Write the last summary; `ending` sets `error` or `interrupted`.

        Raises:
            OrlError: that of a finished run cannot be written.
        """
        with self._lock:
            self._ended = True
            self._write(ending)

    def _write(self, ending: dict[str, Any]) -> None:
        """Write the summary. If it cannot be written, that is only logged if `ending` says how the run ended."""
        try:
            with boundary(OrlError, f"writing {self._path}"):
                replace(self._path, structs.replace(self._summary_of(), **ending).encode())
        except OrlError as fault:
            if not ending:
                raise
            logger.error("%s", fault)


def note_end(config: RunConfig, folder: Path, error: str) -> None:
    """Write how rollouts without training ended. `error` is empty unless too many failed, or a fault ended them."""
    summary = Summary.of(config, read(folder / "metrics.jsonl"))
    ending = structs.replace(summary, error=error or UNSET, interrupted=interrupt.received() or UNSET)
    replace(folder / "summary.json", ending.encode())


def note_interruption(config: RunConfig, folder: Path) -> None:
    """Write that the run was interrupted.

    Raises:
        FileExistsError: its trainer has written a summary already. It stays as it is.
    """
    write_new(folder / "summary.json", structs.replace(Summary.of(config, ()), interrupted=True).encode())
