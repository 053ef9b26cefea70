"""Tables, sparklines and episodes for the terminal. Colours mark the tokens that train.

Text of episodes becomes rich Text (never markup) and has passed `visible`, so that it cannot steer the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from orl_core.text import visible
from orl_rollout.run_folder.metrics_log import Kind, MetricsRow, mean, tally_of
from orl_rollout.run_folder.record import Record
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orl_launcher.reports import EpisodeRow
from orl_launcher.view.episode import Act, EpisodeRows, Role
from orl_launcher.view.evaluations import ResultRows, results_of
from orl_launcher.view.svg import Line, thinned
from orl_launcher.view.wording import (
    GPU_METRICS,
    JUDGED,
    MAIN_METRICS,
    noted,
    number,
    percent,
)

BARS = "▁▂▃▄▅▆▇█"
STYLES = {Role.SHOWN: "dim", Role.TRAINED: "green", Role.UNTRAINED: "yellow"}
VERDICTS = {"won": "green", "lost": "red", "error": "bold red"}
KINDS: tuple[tuple[Kind, str, str], ...] = (("train", "training", ""), ("eval", "held-out", "cyan"))
ROWS = {
    "rows": "rows of a rollout",
    "single_rows": "rollouts of one row",
    "action_tokens": "ids sampled in a rollout",
    "trained_tokens": "ids trained of a rollout",
    "cache_hits": "ids of prompts from the prefix cache",
}


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Draw `values` as at most `width` bars, scaled from least to greatest; longer rows are averaged in bins."""
    if not values:
        return ""
    means = thinned(Line(tuple(range(len(values))), tuple(values)), width).values
    low, span = min(means), (max(means) - min(means)) or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / span * len(BARS)))] for mean in means)


def plain_table(*columns: str, title: str | None = None) -> Table:
    """Make a table: the first column is a name, the others are right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", overflow="fold")
    return table


def curves_table(record: Record) -> Table:
    """Make a table with a sparkline for each curve, and how it changed."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, form in (*MAIN_METRICS, *GPU_METRICS):
        for kind, label, style in KINDS:
            _, values = record.curve(name, kind)
            if change := record.change(name, kind):
                ends = ", ".join(filter(None, (" → ".join(map(form, change)), record.basis(name, kind))))
                ends = noted(ends, record.tally(kind)) if name in JUDGED else ends
                bars = Text(sparkline(values), style=style)
                table.add_row(name.replace("_", " "), Text(label, style="dim"), bars, ends)
    for name in record.evaluated:
        _, values = record.curve("success", "eval", name)
        if len(values) >= 2:
            ends = noted(f"{percent(values[0])} → {percent(values[-1])}", tally_of(record.of_kind("eval"), name))
            table.add_row("success", Text(name, style="dim"), Text(sparkline(values), style="cyan"), ends)
    return table


def results_table(results: ResultRows) -> Table:
    """Make a table of results by environment."""
    columns = (column.replace(", ", ",\n") for column in results.columns)  # narrow, so that names stay whole
    table = plain_table(*columns, title=f"by environment, {results.kind}")
    for row in results.rows:
        table.add_row(*map(Text, row))
    return table


def agents_table(points: Sequence[MetricsRow]) -> Table:
    """Make a table of the rows of rollouts that agents played; without a row if none were."""
    metric_names = {name for point in points for key in point.metrics for name in key.split("/", 2)[2:]}
    counted = [name for name in sorted(metric_names) if name.startswith("agent/")]
    names = {**ROWS, **{name: name.replace("/", ": ").replace("_", " ") for name in counted}}
    table = plain_table("rollouts of agents", "mean")
    for name, label in names.items():
        value = mean(point.overall(name) for point in points)
        if "rows" in metric_names and value is not None:
            table.add_row(label, percent(value) if name in ("single_rows", "cache_hits") else number(value))
    return table


def overview(record: Record) -> Iterator[Table]:
    """Yield the tables of a run that have rows: curves, rollouts of agents, results by environment."""
    results = results_of(record)
    tables = (curves_table(record), agents_table(record.of_kind("train") or record.points))
    yield from (table for table in (*tables, *([results_table(results)] if results else [])) if table.row_count)


def episodes_table(rows: Iterable[EpisodeRow]) -> Table:
    """Make a table with one row for each episode of a run or a journal."""
    table = plain_table("", "step", "", "reward", "turns", "stopped", "task")
    table.columns[-1].justify = "left"
    for row in rows:
        table.add_row(
            str(row.number),
            f"{'' if row.step is None else row.step}{' eval' if row.evaluation else ''}",
            Text(row.verdict, style=VERDICTS[row.verdict]),
            "" if row.reward is None else number(row.reward),
            str(row.turns),
            row.stop_reason,
            Text(visible(_short(row.task)), no_wrap=True, overflow="ellipsis"),
        )
    return table


def _short(key: str) -> str:
    """Shorten a task's key, leaving out the organisation and most of the hash: GuessNumber/test/17f07f."""
    place, _, digest = key.rpartition("/")
    return f"{place.partition('/')[2]}/{digest[:6]}"


def episode_view(rows: EpisodeRows) -> RenderableType:
    """Return one episode of a run or a journal, turn by turn."""
    head = Text.assemble((rows.title, "bold"), "  ", (rows.verdict, VERDICTS[rows.verdict]), f"  {rows.facts}")
    parts: list[RenderableType] = [head, Text(f"{rows.task}  rollout {rows.rollout}", style="dim")]
    if rows.error:
        parts.append(Text(rows.error, style="red"))
    parts += [Text.assemble((f"{role}: ", "dim"), text) for role, text in rows.opening]
    for turn in rows.turns:
        parts += [Text(), Rule(Text(turn.title), align="left", style="dim")]
        words = [(turn.reasoning, "dim italic"), (turn.text, "")]
        parts += [Text(text, style=style) for text, style in words if text]
        if turn.pieces:
            parts.append(Text.assemble(*((piece.text, STYLES[piece.role]) for piece in turn.pieces)))
        parts += [Padding(_act_view(act), (0, 0, 0, 2)) for act in turn.acts]
    if any(turn.pieces for turn in rows.turns):
        legend = (("dim: shown", "dim"), "   ", ("green: sampled, loss mask 1", "green"))
        parts.append(Text.assemble("\n", *legend, "   ", ("yellow: sampled, does not train", "yellow")))
    return Group(*parts)


def _act_view(act: Act) -> Text:
    words = ((act.failure, "red"), (act.lead, "dim"), (act.text, "" if act.facts else "bold"), (act.facts, "dim"))
    return Text(" ").join(Text(text, style=style) for text, style in words if text)
