"""report.html of a run, made only from its folder, whichever trainer wrote it.

It writes this file and changes nothing else. An interrupted run gets a page of what there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from orl_rollout.edge.files import replace
from orl_rollout.episodes.journal import Entry, read_journal
from orl_rollout.run_folder.metrics_log import MetricsRow
from orl_rollout.run_folder.record import Record, read_record

from orl_launcher.view.curves import charts_of
from orl_launcher.view.episode import EpisodeRows, episode_rows
from orl_launcher.view.evaluations import results_of
from orl_launcher.view.html import page
from orl_launcher.view.notices import notices_of
from orl_launcher.view.pieces import load_decoder
from orl_launcher.view.wording import MAIN_METRICS, duration, flat, number, thousands

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
    examples, decoder = examples_of(read_journal(record.journal)), load_decoder(record.journal, folder)
    played = (("Before", examples.before), ("After", examples.after)) if examples else ()
    rows = [episode_rows(f"{when}, step {entry.step or 0}", entry, decoder) for when, entry in played]
    path = folder / "report.html"
    replace(path, page_of(record, "One episode, before and after", examples.choice if examples else "", rows).encode())
    return path


def page_of(record: Record, heading: str, choice: str, episodes: Sequence[EpisodeRows]) -> str:
    """Return the page of a run with some episodes below a heading. `choice` says how they were chosen."""
    values = values_of(record)
    title = f"{values['name']} · orl"
    return page("report", title=title, heading=heading, choice=choice, episodes=episodes, **values)


def values_of(record: Record) -> dict[str, Any]:
    """Return the values of the templates of a report, without episodes."""
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
        **_metrics(record),
        "foremost": flat({key: value for key, value in record.config.items() if key in FOREMOST}),
        "settings": flat({key: value for key, value in record.config.items() if key not in FOREMOST}),
        "versions": ", ".join(map(" ".join, flat(cast("dict[str, Any]", versions))))
        if isinstance(versions, dict)
        else "",
    }


def _metrics(record: Record) -> dict[str, list[Any]]:
    """Return the columns of the metrics table and its rows: `ours`, and the `others`, which are the trainer's own."""
    points: list[tuple[str, MetricsRow]] = []
    for points_of_kind, label in ((record.of_kind("eval"), "held-out"), (record.of_kind("train"), "training")):
        points += [(f"{label}, step {point.step}", point) for point in (*points_of_kind[:1], *points_of_kind[1:][-1:])]
    prefixes = tuple(f"{prefix}/" for prefix in ("all", *record.environments))
    ours: list[list[str]] = []
    others: list[list[str]] = []
    for name in sorted({name for _, point in points for name in point.metrics}):
        cells = (number(point.metrics[name]) if name in point.metrics else "-" for _, point in points)
        (ours if name.startswith(prefixes) else others).append([name, *cells])
    return {"columns": ["metric", *(label for label, _ in points)], "ours": ours, "others": others}


class Examples(Struct, frozen=True):
    """An episode from the beginning and one from the end; `choice` says how they were chosen."""

    before: Entry
    after: Entry
    choice: str


def examples_of(entries: Iterable[Entry]) -> Examples | None:
    """Return examples from evaluation if it was journalled, else from training; None if there is only one step."""
    ends: dict[bool, dict[int, dict[str, Entry]]] = {True: {}, False: {}}  # the first and the last step, by evaluation
    for entry in entries:
        if entry.trajectory.error or not entry.trajectory.turns:
            continue
        job, steps = entry.trajectory.job, ends[entry.trajectory.job.evaluation]
        steps.setdefault(entry.step or 0, {}).setdefault(job.task.key, entry)
        for between in sorted(steps)[1:-1]:
            del steps[between]
    for evaluation, kind in ((True, "held-out"), (False, "training")):
        if len(steps := ends[evaluation]) == 2:
            return _choose(steps[min(steps)], steps[max(steps)], kind)
    return None


def _choose(first: dict[str, Entry], last: dict[str, Entry], kind: str) -> Examples:
    """Choose a task of both steps, if possible one that was lost and is won; else a lost one and a won one."""
    pairs = [(entry, last[key]) for key, entry in first.items() if key in last]
    if not pairs:
        success = attrgetter("success")
        before, after = min(first.values(), key=success), max(last.values(), key=success)
        how = "the first one without success before training, and the first one with it afterwards"
        return Examples(before, after, f"Two {kind} tasks: {how}.")
    before, after = max(pairs, key=lambda pair: pair[1].success and not pair[0].success)
    improved = after.success and not before.success
    how = "that had no success before training and had it afterwards" if improved else "of both steps"
    return Examples(before, after, f"The first {kind} task {how}.")
