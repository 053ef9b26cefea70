"""The curves of a run: which charts a page has, and the lines of each."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import shorten

from orl_rollout.results.interval import wilson
from orl_rollout.run_folder.metrics_log import tally_of
from orl_rollout.run_folder.record import Record, running_mean

from orl_launcher.view.notices import unjudged
from orl_launcher.view.svg import Drawing, Line, Stroke
from orl_launcher.view.wording import JUDGED

CHARTS = (
    ("success", "Success rate", True),
    ("reward", "Reward", False),
    ("valid_calls", "Valid tool calls", True),
    ("turns", "Turns per episode", False),
    ("loss", "Loss", False),
    ("kl", "KL from the reference model", False),
    ("policy_kl", "KL of the update", False),
    ("entropy", "Entropy, nats per token", False),
    ("grad_norm", "Gradient norm", False),
    ("learning_rate", "Learning rate", False),
    ("clip_fraction", "Share of tokens clipped", False),
    ("logprob_difference", "Logprobs, training against sampling", False),
    ("response_tokens", "Tokens of a response", False),
    ("staleness", "Staleness, batches", False),
    ("rollout_seconds", "Seconds of rollouts", False),
    ("train_seconds", "Seconds of training", False),
    ("weight_sync_seconds", "Seconds of copying weights", False),
    ("step_seconds", "Seconds of a step", False),
    ("train_memory_gib", "GPU memory of training, GiB", False),
    ("gpu_utilization", "GPU utilization of this machine", True),
    ("gpu_memory_gib", "GPU memory in use, GiB", False),
    ("generation_seconds", "Engine seconds, all rollouts", False),
    ("environment_seconds", "Environment seconds, all rollouts", False),
)
LABEL = 40  # characters
SMOOTHED_FROM = 10  # steps of training from which a running mean is drawn over the raw values

EXACT = frozenset({"learning_rate"})  # chosen and not measured: a mean over steps would be wrong


def charts_of(record: Record) -> tuple[Drawing, ...]:
    """Return the charts for which the run has at least two points of one kind.

    A chart has a line of training batches, one of held-out evaluations, and one of each environment that was evaluated.
    """
    charts = (
        Drawing(
            title=title,
            note=unjudged(record) if name in JUDGED else "",
            strokes=tuple(_strokes(record, name)),
            share=share,
            band=_interval(record) if name == "success" else None,
            level=record.baseline if name == "success" else None,
        )
        for name, title, share in CHARTS
    )
    return tuple(chart for chart in charts if any(len(stroke.line.steps) > 1 for stroke in chart.strokes))


def _strokes(record: Record, name: str) -> Iterator[Stroke]:
    train, held_out = (Line(*record.curve(name, kind)) for kind in ("train", "eval"))
    smooth = len(train.steps) >= SMOOTHED_FROM and name not in EXACT
    if train.steps:
        yield Stroke(line=train, style="raw" if smooth else "train")
    if smooth:
        yield Stroke(line=Line(train.steps, running_mean(train.values)), style="train")
    for environment in record.evaluated:
        line = Line(*record.curve(name, "eval", environment))
        yield Stroke(line=line, style="set", label=shorten(environment.partition("/")[2], LABEL, placeholder="…"))
    if held_out.steps:
        yield Stroke(line=held_out, style="eval", dots=True)


def _interval(record: Record) -> tuple[Line, Line] | None:
    """Return the bounds of the held-out success rate, low and high; None without evaluations."""
    points = [point for point in record.of_kind("eval") if point.overall("success") is not None]
    bounds = [wilson(point.overall("success") or 0.0, tally_of([point]).judged) for point in points]
    steps = tuple(point.step for point in points)
    low, high = (Line(steps, tuple(bound[end] for bound in bounds)) for end in (0, 1))
    return (low, high) if points else None
