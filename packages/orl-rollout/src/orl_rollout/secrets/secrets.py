"""Secrets: how echoes of their values are found in text, and kept out of files (law L6).

`entries` says where the values come from. An echo is a value in any reading of a text (`readings`), also split over
parts of a tree. Scrub a text before it is folded or cut.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import structs
from orl_core.config import RunConfig
from orl_core.credentials import has_login
from orl_core.errors import ConfigError
from orl_core.text import leaves_in, map_strings, plain
from orl_core.trajectory import Trajectory, Turn

from orl_rollout.secrets.entries import agent_secrets, all_entries
from orl_rollout.secrets.readings import (
    DEPTH,
    ByteRange,
    encoded,
    hits_of,
    in_characters,
    merged,
    places,
    squeezed,
    unescaped,
    windows_of,
)

PLATFORM_KEY = "OPENREWARD_API_KEY"
MASK = "[secret]"
SHORTEST = 4  # bytes: shorter values occur in any text by chance and are not searched for
ENCODED = 8  # bytes: values of this length are also searched for in encoded forms, shorter ones only as they are
LINE = 24  # bytes: a line of this length gives a value of several lines away, such as a line of a PEM key
FRAGMENT = 12  # bytes of a value that are masked, if a tree echoes the whole value
PART = 1 << 20  # characters that are searched at once
LONGER = 8  # times: an encoded value is at most this much longer than the value

_PASSWORD = re.compile(r"://[^/?#\s@]*:([^/?#\s@]+)@")
_TOKEN = re.compile(rb"[A-Za-z0-9+/=_-]+")


def api_key() -> str:
    """Return the platform's key, from the environment of this process; empty if there is none."""
    return os.environ.get(PLATFORM_KEY, "")


def _values(config: RunConfig) -> list[tuple[str, str]]:
    """Return every secret that `config` names and this process has, and the platform's key, each with its name."""
    named = [(entry.name, entry.value) for entry in all_entries(config)]
    return [*named, *agent_secrets(config), (PLATFORM_KEY, api_key())]


def refuse_repeats(config: RunConfig) -> None:
    """Refuse a configuration that holds a secret's value outside of `secrets`: orl writes that part to files.

    Raises:
        ConfigError: names the secret and the `$.path`.
    """
    leaves = list(leaves_in(config.public()))
    for name, value in _values(config):
        scrubber = Scrubber([value] if len(value) >= ENCODED else [])
        if where := next((path or ", a key" for path, text in leaves if scrubber.find(text)), ""):
            raise ConfigError(
                f"the value of the secret `{name}` is also outside of `secrets`, at `${where}`, which orl writes to "
                "files. Remove it there"
            )


def refuse_in_words(config: RunConfig, words: Sequence[str]) -> None:
    """Refuse a trainer's command line that holds a secret's value: everyone can read it, and orl writes it to files.

    Raises:
        ConfigError: names the secret.
    """
    for name, value in _values(config):
        if len(value) >= ENCODED and Scrubber([value]).find_in(list(words)):
            raise ConfigError(
                f"the trainer's arguments hold the value of the secret `{name}`, and everyone could read them. "
                f"Remove it, and set the variable {name.upper()}"
            )


class Scrubber:
    """Finds echoes of secret values in text, in any encoding of `orl_rollout.secrets.readings`.

    Values of 4 to 7 bytes are found only as they are, shorter ones not at all: text often holds them by chance.
    """

    def __init__(self, values: Iterable[str]) -> None:
        given = [encoded(each) for value in values for each in (value, *_PASSWORD.findall(value))]
        self._short = {value.strip() for value in given if len(value.strip()) >= SHORTEST and not _searchable(value)}
        wholes = [form for value in filter(_searchable, given) for form in _forms(value)]
        self._needles = sorted({*wholes, *(line for value in given for line in _lines(value))})

    @classmethod
    def of(cls, config: RunConfig) -> Scrubber:
        """Return a scrubber of the secrets of `config`, the platform's key, and logins in the process environment.

        A login is part of an address, such as a proxy's.
        """
        return cls([*(value for _, value in _values(config)), *filter(has_login, os.environ.values())])

    def settled(self, text: str) -> int:
        """Return the largest prefix length of a streamed `text` that can be flushed without splitting an echo."""
        longest = max(map(len, (*self._short, *self._needles)), default=0)
        cut = max(0, len(text) - (LONGER * longest if self._needles else longest))
        for start, end in reversed(merged(self._echoes(text))):
            cut = start if start < cut < end else cut
        return cut

    def find(self, text: str) -> bool:
        """Return whether `text` echoes a secret. A long text is searched in overlapping parts, which bounds memory."""
        edge = LONGER * max(map(len, (*self._short, *self._needles)), default=0)
        return any(self._stands_in(text[at : at + PART + edge]) for at in range(0, len(text), PART))

    def _stands_in(self, text: str) -> bool:
        data = encoded(text)
        found = bool(self._needles) and next(places(data, hits_of(self._needles)), None) is not None
        return found or any(value in data for value in self._short)

    def scrub(self, text: str) -> str:
        """Return `text` with every echo replaced by `[secret]`."""
        return _masked(text, merged(self._echoes(text)))

    def find_in(self, tree: object) -> bool:
        """Return whether strings or numbers of `tree`, of plain JSON types, echo a secret, alone or joined."""
        if not self._short and not self._needles:
            return False
        leaves = list(leaves_in(tree))
        edge = LONGER * max(map(len, self._needles), default=0)
        row = "".join(_edges(leaves[at][1], edge) for at in _by_name(leaves))
        return any(map(self.find, ("".join(leaves[at][1] for at in _by_path(leaves)), row)))

    def scrub_in(self, tree: Any) -> Any:
        """Return `tree`, of plain JSON types, with strings, keys and numbers scrubbed, also of FRAGMENTs of values."""
        leaves = list(leaves_in(tree))
        found: list[list[ByteRange]] = [[] for _ in leaves]
        for order in (_by_path(leaves), _by_name(leaves)):
            row = [leaves[at][1] for at in order]
            starts = [0, *accumulate(map(len, row))]
            for start, end in merged(self._echoes("".join(row))):
                _share_out(start, end, starts, order, found)
        if any(found):
            windows = windows_of({part for needle in self._needles for part in _fragments(needle)}, FRAGMENT)
            for at, (_, text) in enumerate(leaves):
                found[at] += in_characters(text, places(encoded(text), windows, 1))
        scrubbed = iter([_masked(text, merged(each)) for (_, text), each in zip(leaves, found, strict=True)])
        return map_strings(tree, lambda _: next(scrubbed), numbers=True)

    def cleared(self, trajectory: Trajectory) -> Trajectory:
        """Return `trajectory`. If it echoes a secret: scrubbed, without ids, marked `contains_secret`."""
        bare = structs.replace(without_ids(trajectory), contains_secret=True)
        tree = plain(bare)
        if not trajectory.contains_secret and not self.find_in(tree):
            return trajectory
        try:
            return msgspec.convert(self.scrub_in(tree), Trajectory)
        except msgspec.ValidationError:  # a value is a word of our schema, such as `assistant`
            return structs.replace(bare, messages=(), turns=(), error=trajectory.error and MASK)

    def _echoes(self, text: str) -> Iterator[ByteRange]:
        data = encoded(text)
        found = places(data, hits_of(self._needles)) if self._needles else ()
        return iter(in_characters(text, [*hits_of(self._short)(data), *found]))


def without_ids(trajectory: Trajectory) -> Trajectory:
    """Return `trajectory` without token ids, logprobs and the engine's extras."""
    return structs.replace(trajectory, turns=tuple(_bare(turn) for turn in trajectory.turns))


def _bare(turn: Turn) -> Turn:
    generations = tuple(structs.replace(each, token_ids=(), logprobs=(), extras={}) for each in turn.generations)
    return structs.replace(turn, observation=(), generations=generations)


def _searchable(value: bytes) -> bool:
    return len(squeezed(value)) >= ENCODED


def _forms(value: bytes) -> Iterator[bytes]:
    """Yield the forms of a value in readings: its apparent escapes are resolved, a blank may be a plus sign."""
    for form in {value, value.strip().replace(b" ", b"+")}:
        resolved = form
        for _ in range(DEPTH + 1):
            if _searchable(resolved):
                yield squeezed(resolved)
            resolved = unescaped(resolved)


def _lines(value: bytes) -> list[bytes]:
    """Return the lines that give a value of several lines away: long ones, each one word of base64."""
    lines = value.replace(b"\\n", b"\n").split()
    return [line for line in lines if len(line) >= LINE and _TOKEN.fullmatch(line)] if len(lines) > 1 else []


def _fragments(needle: bytes) -> Iterator[bytes]:
    return (needle[at : at + FRAGMENT] for at in range(len(needle) - FRAGMENT + 1))


def _by_path(leaves: Sequence[tuple[str, str]]) -> list[int]:
    """Order the leaves by path, so that leaves of one kind are adjacent: all tool results."""
    return sorted(range(len(leaves)), key=lambda at: leaves[at][0])


def _by_name(leaves: Sequence[tuple[str, str]]) -> list[int]:
    """Order the leaves by the last key, so that all texts are adjacent, in any role."""
    return sorted(range(len(leaves)), key=lambda at: leaves[at][0].rpartition(".")[2])


def _edges(text: str, edge: int) -> str:
    """Return `text` without the middle of a long one: an echo there is not split."""
    return text if len(text) <= 2 * edge else f"{text[:edge]}\0{text[len(text) - edge :]}"


def _share_out(
    start: int, end: int, starts: Sequence[int], order: Sequence[int], found: Sequence[list[ByteRange]]
) -> None:
    """Add the place [start:end] of joined leaves to each leaf that holds a part of it."""
    at = bisect_right(starts, start) - 1
    while at < len(order) and starts[at] < end:
        first, last = max(start, starts[at]) - starts[at], min(end, starts[at + 1]) - starts[at]
        if first < last:
            found[order[at]].append((first, last))
        at += 1


def _masked(text: str, found: Sequence[ByteRange]) -> str:
    parts: list[str] = []
    end = 0
    for start, stop in found:
        parts += [text[end:start], MASK]
        end = stop
    return "".join([*parts, text[end:]])
