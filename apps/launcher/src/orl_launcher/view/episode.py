"""The view model of an episode: the plain rows and pieces of text that the terminal and the HTML page both show.

A piece has its ids, its logprobs and its role in training. Ids that spell one character together form one piece. The
tokenizer is a file of the run. Text from environments and models is hostile: all of it passes `visible` here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from math import exp
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct
from orl_core import RenderError, boundary
from orl_core.datum import loss_mask_of
from orl_core.messages import ParseFailure, ToolCall, ToolResult, text_of
from orl_core.text import visible
from orl_core.trajectory import ROOT, Trajectory, Turn
from orl_rollout.episodes.journal import Entry
from orl_rollout.run_folder.contract import TOKENIZER

from orl_launcher.reports import row_of
from orl_launcher.view.wording import duration, number

UNLIKELY = 0.5  # the probability below which a sampled piece is marked
SPELLING = 8  # ids that one character may take before it is shown unchanged


class Role(StrEnum):
    """The role of an id: shown to the model, sampled and trained, or not trained."""

    SHOWN = "shown"
    TRAINED = "trained"
    UNTRAINED = "untrained"


class Piece(Struct, frozen=True, kw_only=True):
    """Some text and the ids that spell it. `logprobs` has one member for each sampled id, none for shown ones."""

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    role: Role = Role.SHOWN
    reasoning: bool = False

    @property
    def hint(self) -> str:
        """Return the ids and logprobs in words: `id 7 · logprob -0.105`."""
        ids = f"id{'s' if len(self.ids) > 1 else ''} {' '.join(map(str, self.ids))}"
        logprobs = " ".join(f"{logprob:.3f}" for logprob in self.logprobs)
        return f"{ids} · logprob {logprobs}" if logprobs else ids

    @property
    def unlikely(self) -> bool:
        """Return True if the model sampled this piece with a probability below UNLIKELY."""
        return bool(self.logprobs) and exp(sum(self.logprobs)) < UNLIKELY


class Decoder(Protocol):
    """The part of a tokenizer that is used; `tokenizers.Tokenizer` has it."""

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`."""
        ...


def load_decoder(*folders: Path) -> Decoder | None:
    """Load the first tokenizer in `folders`, next to a journal or in a run's checkpoint; None without one."""
    places = (place / TOKENIZER for folder in folders for place in (folder, folder / "checkpoint"))
    path = next(filter(Path.is_file, places), None)
    if path is None:
        return None
    from tokenizers import Tokenizer

    with boundary(RenderError, f"reading {path}"):
        return Tokenizer.from_file(str(path))


def pieces_of(turn: Turn, decoder: Decoder, mask: Sequence[int]) -> list[Piece]:
    """Return the pieces of one turn in order: first those shown to the model, then those it sampled.

    `mask` is the loss mask of the sampled ids. A piece is trained if one of its ids trains.
    """
    thoughts = [(span.start, span.end) for span in turn.spans or () if span.part == "reasoning"]
    logprobs = [logprob for generation in turn.generations for logprob in generation.logprobs]
    return [
        *(Piece(text=text, ids=ids) for text, ids, _ in _spell(turn.observation, decoder)),
        *(
            Piece(
                text=text,
                ids=ids,
                logprobs=tuple(logprobs[start : start + len(ids)]),
                role=Role.TRAINED if any(mask[start : start + len(ids)]) else Role.UNTRAINED,
                reasoning=any(first <= start < end for first, end in thoughts),
            )
            for text, ids, start in _spell(turn.action_ids, decoder)
        ),
    ]


def _spell(ids: Sequence[int], decoder: Decoder) -> Iterator[tuple[str, tuple[int, ...], int]]:
    """Yield text, its ids and their offset. Each is decoded after the text before it, because spaces depend on it."""
    anchor = start = 0
    for end in range(1, len(ids) + 1):
        known = decoder.decode(ids[anchor:start], skip_special_tokens=False)
        text = decoder.decode(ids[anchor:end], skip_special_tokens=False)[len(known) :]
        unfinished = not text or text.endswith("\ufffd")
        if unfinished and end < len(ids) and end - start < SPELLING:
            continue
        yield visible(text) or f"\u27e8{ids[start]}\u27e9", tuple(ids[start:end]), start
        anchor, start = start, end


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
