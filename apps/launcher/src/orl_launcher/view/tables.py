"""What the terminal shows: tables, sparklines, one episode with what trains in colour.

All text of episodes arrives as rich Text (never as markup) and passed `visible`, so that it cannot steer the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from orl_core.messages import ParseFailure, ToolCall, ToolResult, text_of
from orl_core.text import visible
from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from orl_launcher.view.pieces import Decoder, Role, counts, pieces_of
from orl_launcher.view.wording import call_of, duration, number, percent, verdict

if TYPE_CHECKING:
    from orl_core.trajectory import Turn
    from orl_rollout.journal.journal import Entry
    from orl_rollout.run_folder.record import Record

BARS = "▁▂▃▄▅▆▇█"
STYLES = {Role.SHOWN: "dim", Role.TRAINED: "green", Role.UNTRAINED: "yellow"}
VERDICTS = {"won": "green", "lost": "red", "error": "bold red"}
METRICS = ("rollouts", "reward", "success", "turns", "valid_calls")  # that a table of environments shows
CURVES = ("success", "reward", "valid_calls", "turns")


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """`values` as at most `width` bars between their own least and greatest; longer rows are averaged in bins."""
    if not values:
        return ""
    bins = min(width, len(values))
    edges = [round(place * len(values) / bins) for place in range(bins + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    if high == low:
        return BARS[0] * bins
    return "".join(BARS[min(len(BARS) - 1, int((mean - low) / (high - low) * len(BARS)))] for mean in means)


def plain_table(*columns: str, title: str | None = None) -> Table:
    """A table of our look: the first column is a name, the others are right-aligned."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", overflow="fold")
    return table


def metrics_table(metrics: dict[str, float]) -> Table:
    """The main metrics, one row for each environment."""
    table = plain_table("environment", *METRICS)
    for name in dict.fromkeys(key.removesuffix("/rollouts") for key in metrics if key.endswith("/rollouts")):
        cells = (metrics.get(f"{name}/{key}") for key in METRICS)
        table.add_row(Text(name), *("" if cell is None else number(cell) for cell in cells))
    return table


def curves_table(record: Record) -> Table:
    """A sparkline for each curve, with its first and last value."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for name in CURVES:
        for kind, label in (("train", "training"), ("eval", "held-out")):
            _, values = record.curve(name, "train" if kind == "train" else "eval")
            if len(values) >= 2:
                ends = f"{number(values[0])} → {number(values[-1])}"
                bars = Text(sparkline(values), style="cyan" if kind == "eval" else "")
                table.add_row(name.replace("_", " "), Text(label, style="dim"), bars, ends)
    return table


def closing_table(record: Record) -> Table:
    """What came of a run: before and after, times."""
    table = plain_table("", "before", "after")
    for name, label, shown in (
        ("success", "success", percent),
        ("reward", "reward", number),
        ("valid_calls", "valid calls", percent),
        ("turns", "turns", number),
    ):
        change = record.change(name)
        if change:
            kind = "held-out" if record.judged_on == "eval" else "training"
            table.add_row(f"{label}, {kind}", *map(shown, change))
    if record.baseline is not None:
        table.add_row(Text("success of a consistent random player", style="dim"), "", percent(record.baseline))
    return table


def episodes_table(numbered: Iterable[tuple[int, Entry]]) -> Table:
    """One row for each episode."""
    table = plain_table("", "step", "", "reward", "turns", "stopped", "task")
    table.columns[-1].justify = "left"
    for place, entry in numbered:
        word, trajectory = verdict(entry), entry.trajectory
        kind = " eval" if trajectory.job.evaluation else ""
        table.add_row(
            str(place),
            f"{'' if entry.step is None else entry.step}{kind}",
            Text(word, style=VERDICTS[word]),
            number(entry.reward),
            str(len(trajectory.turns)),
            trajectory.stop_reason.value,
            Text(visible(_short(trajectory.job.task.key)), no_wrap=True, overflow="ellipsis"),
        )
    return table


def _short(key: str) -> str:
    """A task's key without organisation and most of its hash: GuessNumber/test/17f07f."""
    place, _, digest = key.rpartition("/")
    return f"{place.partition('/')[2]}/{digest[:6]}"


def episode_view(place: int, entry: Entry, decoder: Decoder | None) -> RenderableType:
    """One episode, turn by turn."""
    trajectory, word = entry.trajectory, verdict(entry)
    shown, sampled = counts(trajectory)
    head = Text.assemble(
        (f"episode {place}", "bold"),
        "  ",
        (word, VERDICTS[word]),
        f"  reward {number(entry.reward)}, stopped: {trajectory.stop_reason.value}, {shown} ids shown, "
        f"{sampled} sampled, {duration(trajectory.seconds)}",
    )
    key = Text(f"{visible(trajectory.job.task.key)}  rollout {visible(entry.key)}", style="dim")
    parts: list[RenderableType] = [head, key]
    if trajectory.error:
        parts.append(Text(visible(trajectory.error), style="red"))
    for position, turn in enumerate(trajectory.turns, start=1):
        parts += _turn_view(position, turn, decoder, trains=trajectory.trains)
    if decoder:
        legend = (("dim: shown", "dim"), "   ", ("green: sampled, loss mask 1", "green"))
        parts.append(Text.assemble("\n", *legend, "   ", ("yellow: sampled, does not train", "yellow")))
    return Group(*parts)


def _turn_view(position: int, turn: Turn, decoder: Decoder | None, *, trains: bool) -> list[RenderableType]:
    seconds = sum(generation.seconds for generation in turn.generations)
    title = f"turn {position}: {len(turn.observation)} ids shown, {len(turn.action_ids)} sampled in {duration(seconds)}"
    if turn.reward is not None:
        title += f", reward {number(turn.reward)}"
    parts: list[RenderableType] = [Text(), Rule(Text(title), align="left", style="dim")]
    if decoder and turn.action_ids:
        pieces = pieces_of(turn, decoder, trains=trains)
        parts.append(Text.assemble(*((piece.text, STYLES[piece.role]) for piece in pieces)))
    else:
        if turn.action.reasoning:
            parts.append(Text(visible(turn.action.reasoning), style="dim italic"))
        if turn.action.text:
            parts.append(Text(visible(turn.action.text)))
    parts += [Padding(_call_view(call), (0, 0, 0, 2)) for call in turn.action.calls]
    parts += [Padding(_result_view(result), (0, 0, 0, 2)) for result in turn.results]
    return parts


def _call_view(call: ToolCall | ParseFailure) -> Text:
    if isinstance(call, ParseFailure):
        return Text.assemble((call.kind.value, "red"), " ", visible(call.message))
    return Text.assemble(("calls ", "dim"), (visible(call_of(call)), "bold"))


def _result_view(result: ToolResult) -> Text:
    failure = (f"{result.failure.value} ", "red") if result.failure else ""
    paid = "" if result.reward is None else f", reward {number(result.reward)}"
    ends = ", ends the episode" if result.finished else ""
    told = visible(text_of(result.content))
    name = (f"{visible(result.name)} answers ", "dim")
    return Text.assemble(failure, name, told, (f"  {duration(result.seconds)}{paid}{ends}", "dim"))
