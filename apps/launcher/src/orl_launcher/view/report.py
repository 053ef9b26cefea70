"""report.html and curve.png of a run, made from its folder alone, whichever trainer wrote it.

It writes these two files and changes nothing else. An interrupted run gets a page of what there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from orl_rollout.journal.journal import read_journal
from orl_rollout.run_folder.metrics_log import MetricsRow
from orl_rollout.run_folder.record import Record, read_record

from orl_launcher.view.curves import Chart, charts_of, write_png
from orl_launcher.view.episode import EpisodeRows, episode_rows
from orl_launcher.view.examples import Examples, examples_of
from orl_launcher.view.html import flat, page
from orl_launcher.view.pieces import Decoder, load_decoder
from orl_launcher.view.wording import MAIN_METRICS, duration, number

FOREMOST = ("environments", "trainer", "eval")  # settings that stand in sight


def write_report(folder: Path) -> Path:
    """Write report.html, and curve.png if there are curves, into the folder of a run. Return the page's path.

    Raises:
        OrlError: there is no run, or its files cannot be used.
    """
    record = read_record(folder)
    charts = charts_of(record)
    if charts:
        write_png(charts, folder / "curve.png", f"{', '.join(record.environments) or folder.name}")
    path = folder / "report.html"
    examples = examples_of(read_journal(record.journal))
    path.write_text(render(record, charts, examples, load_decoder(folder)), encoding="utf-8")
    return path


def render(record: Record, charts: tuple[Chart, ...], examples: Examples | None, decoder: Decoder | None) -> str:
    """Return the page of a run."""
    name = record.folder.resolve().name
    trainer: dict[str, Any] = record.config.get("trainer", {})
    named = (("model", trainer.get("model")), ("trainer", trainer.get("backend")))
    total = record.summary.get("seconds_total")
    seconds = float(total) if isinstance(total, int | float) else sum(point.seconds for point in record.points)
    told: object = record.summary.get("versions")
    versions = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
    foremost = {key: value for key, value in record.config.items() if key in FOREMOST}
    return page(
        "report",
        title=f"{name} · orl",
        name=name,
        facts=[*record.environments, *(f"{word} {value}" for word, value in named if value)],
        steps=record.steps,
        seconds=seconds,
        change=record.change("success"),
        held_out=record.judged_on == "eval",
        baseline=record.baseline,
        finished=record.finished,
        tiles=[*_tiles(record, seconds)],
        charts=charts,
        choice=examples.choice if examples else "",
        episodes=[*_episodes(examples, decoder)] if examples else [],
        **_metrics(record),
        foremost=flat(foremost),
        settings=flat({key: value for key, value in record.config.items() if key not in FOREMOST}),
        folder=record.folder,
        versions=", ".join(map(" ".join, flat(versions))),
    )


def _episodes(examples: Examples, decoder: Decoder | None) -> Iterator[EpisodeRows]:
    for when, entry in (("Before", examples.before), ("After", examples.after)):
        yield episode_rows(f"{when}, step {entry.step or 0}", entry, decoder)


def _tiles(record: Record, seconds: float) -> Iterator[tuple[str, str]]:
    """Yield the figures beside the headline, each with its label."""
    for name, shown in MAIN_METRICS[1:]:
        if change := record.change(name):
            before, after = (shown(round(value, 2)) for value in change)
            yield (f"{before} → {after}" if before != after else after), name.replace("_", " ")
    yield duration(seconds), "in total"
    warm = "warm start, made earlier" if record.summary.get("warm_start_cached") else "warm start"
    for name, label, form in (
        ("seconds_per_step", "a step", duration),
        ("rollout_seconds_per_step", "rollouts of a step", duration),
        ("seconds_warm_start", warm, duration),
        ("rollouts", "rollouts", _thousands),
        ("model_params", "parameters", _thousands),
    ):
        value = record.summary.get(name)
        if isinstance(value, int | float):
            yield form(value), label


def _thousands(value: float) -> str:
    return f"{value:,.0f}".replace(",", "\u202f")


def _metrics(record: Record) -> dict[str, list[Any]]:
    """Return the columns of the metrics table and its rows: `ours`, and the `others`, which are the trainer's own."""
    points: list[tuple[str, MetricsRow]] = []
    for found, label in ((record.of_kind("eval"), "held-out"), (record.of_kind("train"), "training")):
        points += [(f"{label}, step {point.step}", point) for point in (*found[:1], *found[1:][-1:])]
    prefixes = tuple(f"{prefix}/" for prefix in ("all", *record.environments))
    ours: list[list[str]] = []
    others: list[list[str]] = []
    for name in sorted({name for _, point in points for name in point.metrics}):
        cells = (number(point.metrics[name]) if name in point.metrics else "-" for _, point in points)
        (ours if name.startswith(prefixes) else others).append([name, *cells])
    return {"columns": ["metric", *(label for label, _ in points)], "ours": ours, "others": others}
