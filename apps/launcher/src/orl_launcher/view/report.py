"""report.html and curve.png: what came of a run, made from its folder alone, whichever trainer wrote it.

It reads the folder and writes these two files; it changes nothing else and asks nobody. An interrupted run gets a page
of what there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orl_rollout.run_folder.metrics_log import MetricsRow
from orl_rollout.run_folder.record import Record, read_record

from orl_launcher.view.curves import Chart, charts_of, write_png
from orl_launcher.view.examples import Examples, examples_of
from orl_launcher.view.html import LEGEND, charts_html, episode_html, flat, page, table, text
from orl_launcher.view.pieces import Decoder, load_decoder
from orl_launcher.view.wording import count, duration, number, percent

FOREMOST = ("environments", "trainer", "eval")  # settings that stand in sight


def write_report(folder: Path) -> Path:
    """Write report.html, and curve.png where there are curves, into the folder of a run; the page's path.

    Raises:
        OrlError: there is no run, or its files cannot be used.
    """
    record = read_record(folder)
    charts = charts_of(record)
    if charts:
        write_png(charts, folder / "curve.png", f"{', '.join(record.environments) or folder.name}")
    path = folder / "report.html"
    path.write_text(render(record, charts, _examples(record), load_decoder(folder)), encoding="utf-8")
    return path


def render(record: Record, charts: tuple[Chart, ...], examples: Examples | None, decoder: Decoder | None) -> str:
    """The page of a run."""
    name = record.folder.resolve().name
    parts = [*_opening(record, name), _headline(record)]
    if charts:
        parts += ["<h2>Over training</h2>", charts_html(charts)]
    if examples:
        before, after = examples.before, examples.after
        parts += [
            "<h2>One episode, before and after</h2>",
            f'<p class="muted">{text(examples.choice)}</p>',
            LEGEND,
            '<div class="pair">',
            episode_html(f"Before, step {before.step or 0}", before, decoder),
            episode_html(f"After, step {after.step or 0}", after, decoder),
            "</div>",
        ]
    parts += [*_metrics(record), *_settings(record), *_closing(record)]
    return page(f"{name} · orl", parts)


def _examples(record: Record) -> Examples | None:
    from orl_rollout.journal.journal import read_journal

    return examples_of(read_journal(record.journal))


def _opening(record: Record, name: str) -> Iterator[str]:
    trainer: dict[str, Any] = record.config.get("trainer", {})
    named = (("model", trainer.get("model")), ("trainer", trainer.get("backend")))
    facts = [*record.environments, *(f"{word} {value}" for word, value in named if value)]
    yield f"<header><h1>{text(name)}</h1>"
    yield f'<p class="muted">{" · ".join(map(text, facts))}</p>'
    yield f'<p class="lead">{_sentence(record)}</p></header>'
    if not record.finished:
        yield '<p class="card notice">This run did not come to its end: the page shows what there is.</p>'


def _sentence(record: Record) -> str:
    change = record.change("success")
    if change is None:
        return "There is nothing to compare yet: that takes two evaluations, or two steps of training."
    where = "held-out tasks, which it never trained on" if record.judged_on == "eval" else "its training tasks"
    sentence = (
        f"In {count(record.steps)} and {duration(_seconds(record))} the model went from {percent(change[0])} to "
        f"{percent(change[1])} success on {where}."
    )
    if record.baseline is not None:
        sentence += f" A player that guesses at random, but heeds every reply, wins {percent(record.baseline)}."
    return sentence


def _seconds(record: Record) -> float:
    total = record.summary.get("seconds_total")
    return float(total) if isinstance(total, int | float) else sum(point.seconds for point in record.points)


def _headline(record: Record) -> str:
    change = record.change("success")
    if change is None:
        return ""
    before, after = change
    bars = sorted((("before", before), ("after", after)), key=lambda bar: -bar[1])
    drawn = "".join(f'<i class="{name}" style="width:{100 * share:.1f}%"></i>' for name, share in bars)
    note = f"before {percent(before)}, after {percent(after)}"
    if record.baseline is not None:
        drawn += f'<i class="level" style="left:{100 * record.baseline:.1f}%"></i>'
        note += f", random player {percent(record.baseline)} (mark)"
    tiles = "".join(f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for value, label in _tiles(record))
    label = "success on held-out tasks" if record.judged_on == "eval" else "success in training"
    return (
        f'<div class="headline"><div class="card"><div class="figure"><span class="from">{percent(before)}</span> → '
        f'<span class="to">{percent(after)}</span></div><div class="muted">{label}</div>'
        f'<div class="bar" role="img" aria-label="{text(note)}">{drawn}</div><div class="meta">{text(note)}</div></div>'
        f'<div class="card tiles">{tiles}</div></div>'
    )


def _tiles(record: Record) -> Iterator[tuple[str, str]]:
    for name, label, shown in (
        ("reward", "reward", number),
        ("valid_calls", "valid calls", percent),
        ("turns", "turns", number),
    ):
        change = record.change(name)
        if change:
            before, after = (shown(round(value, 2)) for value in change)
            yield (f"{before} → {after}" if before != after else after), label
    yield duration(_seconds(record)), "in total"
    warm = "warm start, made earlier" if record.summary.get("warm_start_cached") else "warm start"
    for name, label in (
        ("seconds_per_step", "a step"),
        ("rollout_seconds_per_step", "a step's rollouts"),
        ("seconds_warm_start", warm),
    ):
        value = record.summary.get(name)
        if isinstance(value, int | float):
            yield duration(value), label
    for name, label in (("rollouts", "rollouts"), ("model_params", "parameters")):
        value = record.summary.get(name)
        if isinstance(value, int | float):
            yield f"{value:,.0f}".replace(",", "\u202f"), label


def _metrics(record: Record) -> Iterator[str]:
    columns: list[tuple[str, MetricsRow]] = []
    for points, label in ((record.of_kind("eval"), "held-out"), (record.of_kind("train"), "training")):
        columns += [(f"{label}, step {point.step}", point) for point in (*points[:1], *points[1:][-1:])]
    names = sorted({name for _, point in columns for name in point.metrics})
    if not names:
        return
    head = ["metric", *(label for label, _ in columns)]
    rows = {
        name: [text(name), *(number(point.metrics[name]) if name in point.metrics else "-" for _, point in columns)]
        for name in names
    }
    ours = [name for name in names if name.startswith(tuple(f"{prefix}/" for prefix in ("all", *record.environments)))]
    yield "<h2>Metrics</h2>"
    if ours:
        yield table(head, [rows[name] for name in ours], numbers=True)
    others = [rows[name] for name in names if name not in ours]
    if others:
        yield f"<details><summary>The trainer's own metrics</summary>{table(head, others, numbers=True)}</details>"


def _settings(record: Record) -> Iterator[str]:
    if not record.config:
        return
    foremost = {key: value for key, value in record.config.items() if key in FOREMOST}
    others = {key: value for key, value in record.config.items() if key not in FOREMOST}
    yield "<h2>Settings</h2>"
    yield table(["setting", "value"], _rows(foremost))
    yield f"<details><summary>All other settings</summary>{table(['setting', 'value'], _rows(others))}</details>"


def _rows(tree: dict[str, Any]) -> Iterator[list[str]]:
    return ([text(name), f"<code>{text(value)}</code>"] for name, value in flat(tree))


def _closing(record: Record) -> Iterator[str]:
    versions: object = record.summary.get("versions")
    known = ", ".join(f"{name} {value}" for name, value in flat(versions)) if isinstance(versions, dict) else ""  # pyright: ignore[reportUnknownArgumentType]
    yield f"<footer><p>Made by orl from the files of {text(record.folder)}. {text(known)}</p></footer>"
