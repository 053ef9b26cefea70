"""The view model of an episode: the plain rows that the terminal and the HTML page both show.

It knows no renderer. Text from environments and models is hostile: all of it passes `visible` here.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from orl_core.datum import loss_mask_of
from orl_core.messages import ParseFailure, ToolCall, ToolResult, text_of
from orl_core.text import visible
from orl_core.trajectory import ROOT, Trajectory, Turn
from orl_rollout.episodes.journal import Entry

from orl_launcher.reports import row_of
from orl_launcher.view.pieces import Decoder, Piece, pieces_of
from orl_launcher.view.wording import duration, number


class Act(Struct, frozen=True):
    """One line below a turn: a call, a call that could not be parsed, or a tool's result."""

    lead: str
    text: str
    failure: str = ""
    facts: str = ""


class TurnRows(Struct, frozen=True):
    """One turn. `reasoning` and `text` are the parsed output of the model, "" if there are `pieces`."""

    title: str
    acts: tuple[Act, ...]
    pieces: tuple[Piece, ...] = ()
    reasoning: str = ""
    text: str = ""


class EpisodeRows(Struct, frozen=True, kw_only=True):
    """One episode; `verdict` is won, lost or error.

    `opening` is the prompt, as roles and texts, filled where the first turn has no `pieces`.
    """

    title: str
    verdict: str
    facts: str
    task: str
    rollout: str
    error: str
    opening: tuple[tuple[str, str], ...]
    turns: tuple[TurnRows, ...]


def episode_rows(title: str, entry: Entry, decoder: Decoder | None) -> EpisodeRows:
    """Make the rows of an episode. Without a `decoder` they have the parsed text instead of pieces."""
    trajectory, row = entry.trajectory, row_of(0, entry)
    shown = sum(len(turn.observation) for turn in trajectory.turns)
    sampled = sum(len(turn.action_ids) for turn in trajectory.turns)
    reward = "" if row.reward is None else f"reward {number(row.reward)}, "
    turns = tuple(_turn(index, trajectory, decoder) for index in range(len(trajectory.turns)))
    branches = len(trajectory.parents) - len({*trajectory.parents})
    counted = f", {branches} {'branch' if branches == 1 else 'branches'}" if branches else ""
    opening = tuple((message.role, visible(text_of(message.content))) for message in trajectory.messages)
    return EpisodeRows(
        title=title,
        verdict=row.verdict,
        facts=f"{reward}stopped: {trajectory.ending}, {shown} ids shown, "
        f"{sampled} sampled, {duration(trajectory.seconds)}{counted}",
        task=visible(trajectory.job.task.key),
        rollout=visible(entry.key),
        error=visible(trajectory.error),
        opening=() if any(turn.pieces for turn in turns[:1]) else opening,
        turns=turns,
    )


def _turn(index: int, trajectory: Trajectory, decoder: Decoder | None) -> TurnRows:
    turn = trajectory.turns[index]
    trains = trajectory.trainable and not trajectory.job.evaluation
    seconds = duration(sum(generation.seconds for generation in turn.generations))
    title = f"turn {index + 1}: {len(turn.observation)} ids shown, {len(turn.action_ids)} sampled in {seconds}"
    acts = (*map(_call, turn.action.calls), *map(_result, turn.results))
    title += _reward(turn.reward) + _branch(turn)
    if decoder and turn.action_ids:
        mask = loss_mask_of(turn, trajectory.job.limits.train_on) if trains else [0] * len(turn.action_ids)
        return TurnRows(title, acts, tuple(pieces_of(turn, decoder, mask)))
    return TurnRows(title, acts, reasoning=visible(turn.action.reasoning), text=visible(turn.action.text))


def _branch(turn: Turn) -> str:
    """Return where a turn branches off; "" if it continues the turn before."""
    if turn.continues is None:
        return ""
    return ", begins a conversation" if turn.continues == ROOT else f", continues turn {turn.continues + 1}"


def _call(call: ToolCall | ParseFailure) -> Act:
    if isinstance(call, ParseFailure):
        return Act("", visible(call.message), failure=call.kind.value)
    arguments = (f"{name}={msgspec.json.encode(value).decode()}" for name, value in call.arguments.items())
    return Act("calls", visible(f"{call.name}({', '.join(arguments)})"))


def _result(result: ToolResult) -> Act:
    return Act(
        f"{visible(result.name)} answers",
        visible(text_of(result.content)),
        failure=result.failure.value if result.failure else "",
        facts=f"{duration(result.seconds)}{_reward(result.reward)}{', ends the episode' if result.finished else ''}",
    )


def _reward(reward: float | None) -> str:
    return "" if reward is None else f", reward {number(reward)}"
