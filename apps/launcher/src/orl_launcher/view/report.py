"""report.html of a run, made only from its folder, whichever trainer wrote it, and the templates of all pages.

It writes this file and changes nothing else. An interrupted run gets a page of what there is.

A page is one file: no script, no request to anywhere. Every value that a template prints is made visible and escaped,
because episodes hold whatever environments and models said; only our own drawings (`|safe`) are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from orl_core.text import visible
from orl_rollout.edge.files import replace
from orl_rollout.results.metrics import wilson
from orl_rollout.run_folder.metrics_log import tally_of
from orl_rollout.run_folder.record import Record, read_record, running_mean

from orl_launcher.view.episode import Piece, Role
from orl_launcher.view.evaluations import notices_of, results_of, unjudged
from orl_launcher.view.svg import NUMBER, SECONDS, SHARE, Drawing, Line, Stroke, draw, spark
from orl_launcher.view.wording import (
    JUDGED,
    MAIN_METRICS,
    count,
    duration,
    flat,
    moment,
    noted,
    number,
    one_line,
    percent,
    thousands,
)

FOREMOST = ("environments", "trainer", "eval")  # settings that are always in sight
FIGURES = (
    ("seconds_per_step", "a step", duration),
    ("rollout_seconds_per_step", "rollouts of a step", duration),
    ("seconds_warm_start", "warm start", duration),
    ("rollouts", "rollouts", thousands),
    ("model_params", "parameters", thousands),
)


def write_report(folder: Path) -> Path:
    """Write report.html into the folder of a run. Return its path."""
    record = read_record(folder)
    values, path = values_of(record), folder / "report.html"
    replace(path, page("report", title=f"{values['name']} · orl", **values).encode())
    return path


def values_of(record: Record) -> dict[str, Any]:
    """Return the values of the templates of a report."""
    name = record.folder.resolve().name
    trainer = record.section("trainer")
    versions: object = record.summary.get("versions")
    return {
        "name": name,
        "record": record,
        "facts": [*record.environments, *(f"{key} {trainer[key]}" for key in ("model", "backend") if trainer.get(key))],
        "main_metrics": MAIN_METRICS[1:],
        "figures": FIGURES,
        "charts": charts_of(record),
        "results": results_of(record),
        "notices": list(notices_of(record)),
        "foremost": flat({key: value for key, value in record.config.items() if key in FOREMOST}),
        "settings": flat({key: value for key, value in record.config.items() if key not in FOREMOST}),
        "versions": ", ".join(map(" ".join, flat(cast("dict[str, Any]", versions))))
        if isinstance(versions, dict)
        else "",
    }


GROUPS = {  # of charts, by their headings
    "Learning": (
        ("success", "Success rate", SHARE),
        ("reward", "Reward", NUMBER),
        ("valid_calls", "Valid tool calls", SHARE),
        ("turns", "Turns per episode", NUMBER),
        ("tokens_per_turn", "Tokens sampled in a turn", NUMBER),
        ("response_tokens", "Tokens of a response", NUMBER),
    ),
    "Policy": (
        ("loss", "Loss", NUMBER),
        ("kl", "KL from the reference model", NUMBER),
        ("policy_kl", "KL of the update", NUMBER),
        ("entropy", "Entropy, nats per token", NUMBER),
        ("grad_norm", "Gradient norm", NUMBER),
        ("learning_rate", "Learning rate", NUMBER),
        ("clip_fraction", "Share of tokens clipped", NUMBER),
        ("logprob_difference", "Logprobs, training against sampling", NUMBER),
        ("staleness", "Staleness, batches", NUMBER),
    ),
    "Speed": (
        ("step_seconds", "Time of a step", SECONDS),
        ("rollout_seconds", "Time of rollouts", SECONDS),
        ("train_seconds", "Time of training", SECONDS),
        ("weight_sync_seconds", "Time of copying weights", SECONDS),
    ),
    "Machine": (
        ("gpu_utilization", "GPU utilization of this machine", SHARE),
        ("gpu_memory_gib", "GPU memory in use, GiB", NUMBER),
        ("train_memory_gib", "GPU memory of training, GiB", NUMBER),
    ),
}
CHARTS = [(group, name, title, units) for group, charts in GROUPS.items() for name, title, units in charts]
SMOOTHED_FROM = 10  # steps of training from which a running mean is drawn over the raw values
LABEL = 40  # characters of an environment's name
EXACT = frozenset({"learning_rate"})  # chosen and not measured: a mean over steps would be wrong


def charts_of(record: Record) -> tuple[Drawing, ...]:
    """Return the charts for which the run has at least two points of one kind.

    A chart has a line of training batches, one of held-out evaluations, and one of each environment that was evaluated.
    """
    charts = (
        Drawing(
            group=group,
            title=title,
            note=unjudged(record) if name in JUDGED else "",
            strokes=tuple(_strokes(record, name)),
            units=units,
            band=_interval(record) if name == "success" else None,
        )
        for group, name, title, units in CHARTS
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
        yield Stroke(line=line, style="set", label=one_line(environment.partition("/")[2], LABEL))
    if held_out.steps:
        yield Stroke(line=held_out, style="eval", dots=True)


def _interval(record: Record) -> tuple[Line, Line] | None:
    """Return the bounds of the held-out success rate, low and high; None without evaluations."""
    points = [point for point in record.of_kind("eval") if point.overall("success") is not None]
    bounds = [wilson(point.overall("success") or 0.0, tally_of([point]).judged) for point in points]
    steps = tuple(point.step for point in points)
    low, high = (Line(steps, tuple(bound[end] for bound in bounds)) for end in (0, 1))
    return (low, high) if points else None


KEPT = 300  # characters of a long observation that stay in sight


def page(template: str, **values: object) -> str:
    """Render the template of this name with `values`."""
    return _templates().get_template(f"templates/{template}.html.j2").render(values)


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader("orl_launcher.view", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (number, percent, duration, count, thousands, noted, moment, draw, spark, folded)
    cast("dict[str, Any]", environment.filters).update({each.__name__: each for each in filters})
    return environment


def _finalize(value: object) -> object:
    """Make a value visible before it is escaped. The output of a macro or of `|safe` is HTML already."""
    return value if hasattr(value, "__html__") else visible(str(value))


def folded(pieces: Sequence[Piece]) -> tuple[Sequence[Piece], Sequence[Piece]]:
    """Split the pieces of a turn: the beginning of a long observation, which is folded away, and the rest."""
    fold = sum(piece.role is Role.SHOWN for piece in pieces)
    kept = 0
    while fold and kept < KEPT:
        fold -= 1
        kept += len(pieces[fold].text)
    if sum(len(piece.text) for piece in pieces[:fold]) <= KEPT:
        fold = 0
    return pieces[:fold], pieces[fold:]
