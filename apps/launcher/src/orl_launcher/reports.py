"""What commands print with `--json`: one JSON object on standard output. docs/output.schema.json is made from it.

What is printed for people goes to standard error then. Null is a figure that is not known.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import AbstractContextManager, redirect_stdout
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from orl_core.text import clean, map_strings
from orl_core.trajectory import StopReason
from orl_rollout.episodes.journal import Entry

from orl_launcher.conversations import ChatRow

Verdict = Literal["won", "lost", "error"]  # of an episode
CheckVerdict = Literal["ok", "warning", "failed", "still loading", "not checked"]  # of a check of `orl doctor`


class PrepareReport(Struct, frozen=True, kw_only=True):
    """Tasks that `orl prepare` wrote."""

    output: Annotated[str, Meta(description="File that was written.")]
    total: Annotated[int, Meta(description="Number of tasks in it.")]
    environments: Annotated[dict[str, int], Meta(description="Number of tasks by environment.")]
    duplicates: Annotated[int, Meta(description="Tasks left out because they were there already.")]


class RolloutReport(Struct, frozen=True, kw_only=True):
    """Rollouts that `orl rollout` played."""

    folder: Annotated[str, Meta(description="Folder of the journal.")]
    rollouts: Annotated[int, Meta(description="Number of rollouts.")]
    errors: Annotated[int, Meta(description="Rollouts that ended in ERROR. They do not count in the metrics.")]
    latest_error: Annotated[str, Meta(description="Error of the last one, or empty.")]
    metrics: Annotated[dict[str, float], Meta(description="Metrics by environment, as in metrics.jsonl.")]


class MetricReport(Struct, frozen=True, kw_only=True):
    """One metric over steps. `steps` and `values` have the same length."""

    name: str
    kind: Annotated[Literal["train", "eval"], Meta(description="Training batches or held-out tasks.")]
    steps: list[int]
    values: list[float]


class EpisodeRow(Struct, frozen=True, kw_only=True):
    """One episode of a journal in a list: in the terminal, on a page, in JSON, and in the index of a journal."""

    number: Annotated[int, Meta(description="Number in the journal, from 1, for --episode.")]
    step: int | None
    evaluation: Annotated[bool, Meta(description="The task was held out.")]
    verdict: Verdict
    reward: Annotated[float | None, Meta(description="Null if the episode ended in ERROR.")]
    turns: int
    stop_reason: str
    task: str
    seconds: float


class EpisodeReport(EpisodeRow, frozen=True, kw_only=True):
    """One episode of a journal."""

    rollout_id: str
    error: str
    conversations: Annotated[list[ChatRow] | None, Meta(description="Its messages, with --episode alone.")] = None


class ShowReport(Struct, frozen=True, kw_only=True):
    """A run or a journal, as `orl show` reads it."""

    path: str
    finished: Annotated[bool | None, Meta(description="Whether the run came to its end. Null for a journal alone.")]
    environments: list[str]
    notices: Annotated[list[str], Meta(description="The run's error, how many rollouts were judged, missing signal.")]
    curves: list[MetricReport]
    episodes: Annotated[list[EpisodeReport], Meta(description="The last episodes that match, or that of --episode.")]


class FindingReport(Struct, frozen=True, kw_only=True):
    """One finding of `orl doctor`."""

    group: str
    verdict: Annotated[CheckVerdict, Meta(description="Only failed fails the check-up.")]
    text: str
    notes: Annotated[list[str], Meta(description="Remarks that need no action.")]


class DoctorReport(Struct, frozen=True, kw_only=True):
    """All findings of `orl doctor`."""

    ok: Annotated[bool, Meta(description="No check failed. It is the exit code, too.")]
    findings: list[FindingReport]


OUTPUTS: dict[str, type[Struct]] = {
    "prepare": PrepareReport,
    "rollout": RolloutReport,
    "show": ShowReport,
    "doctor": DoctorReport,
}


def row_of(number: int, entry: Entry) -> EpisodeRow:
    """Return the row of an episode."""
    trajectory = entry.trajectory
    failed = trajectory.stop_reason is StopReason.ERROR
    return EpisodeRow(
        number=number,
        step=entry.step,
        evaluation=trajectory.job.evaluation,
        verdict="error" if failed else "won" if entry.success else "lost",
        reward=None if failed else entry.reward,
        turns=len(trajectory.turns),
        stop_reason=trajectory.ending,
        task=trajectory.job.task.key,
        seconds=trajectory.seconds,
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/output.schema.json)")


def for_people(arguments: argparse.Namespace) -> AbstractContextManager[object]:
    """Send what the block prints to standard error if the output is JSON."""
    return redirect_stdout(sys.stderr if arguments.json else sys.stdout)


def print_json(report: Struct) -> None:
    """Print a report."""
    tree = map_strings(msgspec.to_builtins(report), clean)
    print(msgspec.json.format(msgspec.json.encode(tree), indent=2).decode())


def schema() -> dict[str, Any]:
    """Return the JSON schema of all outputs, by command."""
    (*schemas,), definitions = msgspec.json.schema_components(OUTPUTS.values(), ref_template="#/$defs/{name}")
    properties = dict(zip(OUTPUTS, schemas, strict=True))
    return {"title": "Output of orl COMMAND --json", "properties": properties, "$defs": definitions}
