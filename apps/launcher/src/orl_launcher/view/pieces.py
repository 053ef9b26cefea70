"""The ids of a trajectory as pieces of text, each with its ids, its logprobs and its role in training.

It knows nothing of terminals and pages. Text from environments and models is hostile: `visible` is applied to all of it
here. Ids that spell one character together form one piece. The tokenizer is a file of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum
from math import exp
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from orl_core import RenderError, Turn, boundary
from orl_core.text import visible
from orl_rollout.run_folder.contract import TOKENIZER

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
