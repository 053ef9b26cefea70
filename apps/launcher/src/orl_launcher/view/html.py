"""The parts that HTML pages are made of: the frame, tables, charts with their key, an episode with its ids coloured.

A page is one file: no script, no request to anywhere. All text passes `text`, which escapes it and makes control
characters visible, because episodes hold whatever environments and models said.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from math import exp
from typing import TYPE_CHECKING, Any, cast

from orl_core.messages import ParseFailure, ToolCall, ToolResult, text_of
from orl_core.text import visible

from orl_launcher.view.curves import Chart, svg_of
from orl_launcher.view.pieces import Decoder, Piece, Role, counts, pieces_of
from orl_launcher.view.wording import call_of, duration, number, verdict

if TYPE_CHECKING:
    from orl_core.trajectory import Turn
    from orl_rollout.journal.journal import Entry

CLASSES = {Role.TRAINED: "t", Role.UNTRAINED: "n"}
KEPT = 300  # characters of a long observation that stay in sight
UNLIKELY = 0.5  # the probability below which a sampled id is underlined


def text(value: object) -> str:
    """`value` as text of a page."""
    return escape(visible(str(value)), quote=True)


def page(title: str, body: Iterable[str]) -> str:
    """A whole document."""
    style = files("orl_launcher.view").joinpath("style.css").read_text(encoding="utf-8")
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{text(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False) -> str:
    """A table in a card; cells are HTML already, the first of a row is its name, the others are `numbers` or not."""
    kind = ' class="number"' if numbers else ""
    names = "".join(f'<th scope="col"{kind if place else ""}>{cell}</th>' for place, cell in enumerate(head))
    lines = (
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td{kind}>{cell}</td>" for cell in others) + "</tr>"
        for first, *others in rows
    )
    return (
        f'<div class="card scroll"><table><thead><tr>{names}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table></div>"
    )


def charts_html(charts: Sequence[Chart]) -> str:
    """All charts in a grid, with one key for them."""
    key = [
        ("of-train", "training batch (bold: mean of 5 steps)", any(chart.train.steps for chart in charts)),
        ("of-eval", "held-out tasks", any(chart.held_out.steps for chart in charts)),
        ("of-baseline", "random player that heeds the replies", any(chart.baseline is not None for chart in charts)),
    ]
    items = "".join(f'<li><i class="{name}"></i>{label}</li>' for name, label, there in key if there)
    drawn = "\n".join(
        f'<figure class="card"><figcaption>{text(chart.title)}</figcaption>\n{svg_of(chart)}</figure>'
        for chart in charts
    )
    return f'<ul class="key">{items}</ul>\n<div class="charts">\n{drawn}\n</div>'


LEGEND = (
    '<ul class="key"><li><i class="swatch t"></i>sampled by the model: loss mask 1</li>'
    '<li><i class="swatch n"></i>sampled, but does not train: loss mask 0</li>'
    '<li><i class="swatch"></i>shown to the model: loss mask 0</li>'
    f'<li><span class="low">underlined</span>&nbsp;sampled with a probability below {UNLIKELY:g}</li>'
    '<li class="muted">hover an id for its number and logprob</li></ul>'
)


def episode_html(title: str, entry: Entry, decoder: Decoder | None) -> str:
    """One episode: its end in a line, then turn by turn ids, calls, rewards and times."""
    trajectory = entry.trajectory
    shown, sampled = counts(trajectory)
    word = verdict(entry)
    error = f'<p class="lost">{text(trajectory.error)}</p>' if trajectory.error else ""
    turns = "\n".join(
        _turn(position, turn, decoder, trains=trajectory.trains) for position, turn in enumerate(trajectory.turns, 1)
    )
    return (
        f'<article class="card episode"><header><h3>{text(title)}</h3>'
        f'<span class="{"won" if entry.success else "lost"}">{word}</span>'
        f'<span class="meta">reward {number(entry.reward)} · stopped: {text(trajectory.stop_reason.value)} · '
        f"{shown} ids shown, {sampled} sampled · {duration(trajectory.seconds)}</span></header>\n"
        f'<p class="meta">{text(trajectory.job.task.key)}</p>{error}\n<ol>\n{turns}\n</ol></article>'
    )


def _turn(position: int, turn: Turn, decoder: Decoder | None, *, trains: bool) -> str:
    seconds = sum(generation.seconds for generation in turn.generations)
    meta = f"turn {position} · {len(turn.observation)} ids shown, {len(turn.action_ids)} sampled in {duration(seconds)}"
    if turn.reward is not None:
        meta += f" · reward {number(turn.reward)}"
    if decoder and turn.action_ids:
        said = _ids(pieces_of(turn, decoder, trains=trains))
    else:
        said = "".join(
            f"<blockquote>{text(part)}</blockquote>" for part in (turn.action.reasoning, turn.action.text) if part
        )
    calls = "".join(f"<li>{_call(call)}</li>" for call in turn.action.calls)
    results = "".join(f"<li>{_result(result)}</li>" for result in turn.results)
    acts = f'<ul class="calls">{calls}{results}</ul>' if calls or results else ""
    return f'<li class="turn"><div class="meta">{meta}</div>{said}{acts}</li>'


def _ids(pieces: Sequence[Piece]) -> str:
    """All ids of a turn; the beginning of a long observation is folded away, so that what was sampled is in sight."""
    shown = [piece for piece in pieces if piece.role is Role.SHOWN]
    kept = len(shown)
    while kept and sum(len(piece.text) for piece in shown[kept:]) < KEPT:
        kept -= 1
    fold = kept if sum(len(piece.text) for piece in shown[:kept]) > KEPT else 0
    first, rest = "".join(map(_piece, pieces[:fold])), "".join(map(_piece, pieces[fold:]))
    count = sum(len(piece.ids) for piece in pieces[:fold])
    head = f"<details><summary>the first {count} ids</summary><pre>{first}</pre></details>" if fold else ""
    return f"{head}<pre>{rest}</pre>"


def _piece(piece: Piece) -> str:
    label = "ids " if len(piece.ids) > 1 else "id "
    hint = label + " ".join(map(str, piece.ids))
    if piece.logprobs:
        hint += " · logprob " + " ".join(f"{logprob:.3f}" for logprob in piece.logprobs)
    names = [CLASSES[piece.role]] if piece.role in CLASSES else []
    if piece.logprobs and exp(sum(piece.logprobs)) < UNLIKELY:
        names.append("low")
    kind = f' class="{" ".join(names)}"' if names else ""
    return f'<span{kind} title="{hint}">{text(piece.text)}</span>'


def _call(call: ToolCall | ParseFailure) -> str:
    if isinstance(call, ParseFailure):
        return f'<span class="lost">{call.kind.value}</span> {text(call.message)}'
    return f"calls <code>{text(call_of(call))}</code>"


def _result(result: ToolResult) -> str:
    kind = f'<span class="lost">{result.failure.value}</span> ' if result.failure else ""
    paid = "" if result.reward is None else f", reward {number(result.reward)}"
    ends = ", ends the episode" if result.finished else ""
    meta = f'<span class="meta">{duration(result.seconds)}{paid}{ends}</span>'
    return f"{kind}{text(result.name)} answers <code>{text(text_of(result.content))}</code> {meta}"


def flat(tree: dict[str, Any], path: str = "") -> list[tuple[str, str]]:
    """The leaves of plain JSON as (dotted path, value); nulls and empty collections are left out."""
    leaves: list[tuple[str, str]] = []
    for key, value in tree.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            leaves += flat(cast("dict[str, Any]", value), name)
        elif isinstance(value, list | tuple):
            members = cast("list[object]", value)
            leaves += [(name, ", ".join(map(_scalar, members)))] if members else []
        elif value is not None:
            leaves.append((name, _scalar(value)))
    return leaves


def _scalar(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
