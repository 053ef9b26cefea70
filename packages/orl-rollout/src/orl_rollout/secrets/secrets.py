"""Secrets: where their values come from, and how their echoes are found in text (law L6).

A value stands in the configuration, or in a variable with the secret's name or its upper-case form. An echo is a value
in any reading of a text (`readings`), also split over parts of a tree. Text is scrubbed before it is folded or cut.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import msgspec
from msgspec import structs
from orl_core.config import RunConfig, Secret
from orl_core.credentials import has_login
from orl_core.errors import ConfigError
from orl_core.text import leaves_in, map_strings, plain
from orl_core.trajectory import Trajectory, Turn

from orl_rollout.secrets.readings import DEPTH, ByteRange, Hits, merged, places, squeezed, unescaped

PLATFORM_KEY = "OPENREWARD_API_KEY"
MASK = "[secret]"
SHORTEST = 4  # bytes: shorter values stand in any text, so they cannot be told apart and are not searched for
ENCODED = 8  # bytes: values from here on are also searched for in encoded forms; shorter ones as they are
LINE = 24  # bytes of a line of several from which it gives the value away by itself: a line of a PEM key
FRAGMENT = 12  # bytes of a value that are masked, wherever a text echoes the whole of it
_BLOCK = FRAGMENT // 2  # bytes: every fragment covers a whole block of a text that is cut into blocks
PART = 1 << 20  # characters that are searched at once
LONGER = 8  # times: how much longer than itself an encoded value is taken to be where a text goes on

_PASSWORD = re.compile(r"://[^/?#\s@]*:([^/?#\s@]+)@")
_TOKEN = re.compile(rb"[A-Za-z0-9+/=_-]+")


def api_key() -> str:
    """Return the platform's key, from the environment of this process; empty where there is none."""
    return os.environ.get(PLATFORM_KEY, "")


def resolve_secrets(config: RunConfig, env_name: str) -> dict[str, Secret]:
    """Return the secrets of one environment with their values: the configuration's, then the environment's own.

    Raises:
        ConfigError: a value is neither in the configuration nor in the process environment; names both.
    """
    resolved: dict[str, Secret] = {}
    for name, entry in {**config.secrets, **config.environments[env_name].secrets}.items():
        value = _value(name, entry)
        if not value:
            variables = " or ".join(dict.fromkeys((name, name.upper())))
            raise ConfigError(f"environment `{env_name}` needs the secret `{name}`: set the variable {variables}")
        resolved[name] = Secret(value=value, hosts=entry.hosts if isinstance(entry, Secret) else ())
    return resolved


def _value(name: str, entry: str | Secret | None) -> str:
    given = entry.value if isinstance(entry, Secret) else entry
    return given or os.environ.get(name) or os.environ.get(name.upper()) or ""


def _values(config: RunConfig) -> list[tuple[str, str]]:
    """Return every secret that `config` names and this process has, and the platform's key, each with its name."""
    entries = [config.secrets, *(environment.secrets for environment in config.environments.values())]
    named = [(name, _value(name, entry)) for secrets in entries for name, entry in secrets.items()]
    return [*named, (PLATFORM_KEY, api_key())]


def refuse_repeats(config: RunConfig) -> None:
    """Refuse a configuration that holds a secret's value outside of `secrets`: that part is written down.

    Raises:
        ConfigError: it does; names the secret and the `$.path`.
    """
    leaves = list(leaves_in(config.public()))
    for name, value in _values(config):
        scrubber = Scrubber([value] if len(value) >= ENCODED else [])
        if where := next((path or ", a key" for path, text in leaves if scrubber.find(text)), ""):
            raise ConfigError(
                f"the value of the secret `{name}` stands outside of `secrets` too, at `${where}`, which is written "
                "down: take it out there"
            )


def refuse_in_words(config: RunConfig, words: Sequence[str]) -> None:
    """Refuse a trainer's command line that holds a secret's value: everyone can read it, and it is written down.

    Raises:
        ConfigError: it does; names the secret.
    """
    for name, value in _values(config):
        if len(value) >= ENCODED and Scrubber([value]).find_in(list(words)):
            raise ConfigError(
                f"the value of the secret `{name}` stands in the trainer's arguments, which everyone could read: "
                f"take it out, and set the variable {name.upper()}"
            )


class Scrubber:
    """Finds echoes of secret values in text, whatever encodings they are in (see `orl_rollout.secrets.readings`).

    Values of 4 to 7 bytes are found as they are alone, shorter ones not at all: text that holds them by chance could
    not be told from text that echoes them.
    """

    def __init__(self, values: Iterable[str]) -> None:
        given = [_bytes(each) for value in values for each in (value, *_PASSWORD.findall(value))]
        self._short = {value.strip() for value in given if len(value.strip()) >= SHORTEST and not _searchable(value)}
        wholes = [form for value in filter(_searchable, given) for form in _forms(value)]
        self._needles = sorted({*wholes, *(line for value in given for line in _lines(value))})

    @classmethod
    def of(cls, config: RunConfig) -> Scrubber:
        """Return a scrubber of every secret that `config` names and this process has, of the platform's key, of logins.

        Logins are those in the process environment's addresses, such as a proxy's.
        """
        return cls([*(value for _, value in _values(config)), *filter(has_login, os.environ.values())])

    def settled(self, text: str) -> int:
        """Return the largest cut of `text`, which goes on, that splits no echo, whatever follows."""
        longest = max(map(len, (*self._short, *self._needles)), default=0)
        cut = max(0, len(text) - (LONGER * longest if self._needles else longest))
        for start, end in reversed(merged(self._echoes(text))):
            cut = start if start < cut < end else cut
        return cut

    def find(self, text: str) -> bool:
        """Return whether `text` echoes a secret. A long one is searched in parts that overlap, which bounds memory."""
        edge = LONGER * max(map(len, (*self._short, *self._needles)), default=0)
        return any(self._stands_in(text[at : at + PART + edge]) for at in range(0, len(text), PART))

    def _stands_in(self, text: str) -> bool:
        data = _bytes(text)
        found = bool(self._needles) and next(places(data, _hits(self._needles)), None) is not None
        return found or any(value in data for value in self._short)

    def scrub(self, text: str) -> str:
        """Return `text` with every echo replaced by `[secret]`."""
        return _masked(text, merged(self._echoes(text)))

    def find_in(self, tree: object) -> bool:
        """Return whether strings or numbers of `tree`, of plain JSON types, echo a secret, alone or in a row."""
        if not self._short and not self._needles:
            return False
        leaves = list(leaves_in(tree))
        edge = LONGER * max(map(len, self._needles), default=0)
        row = "".join(_edges(leaves[at][1], edge) for at in _by_name(leaves))
        return any(map(self.find, ("".join(leaves[at][1] for at in _by_path(leaves)), row)))

    def scrub_in(self, tree: Any) -> Any:
        """Return `tree`, of plain JSON types, scrubbed: strings, keys and numbers. Of values also FRAGMENTs are."""
        leaves = list(leaves_in(tree))
        found: list[list[ByteRange]] = [[] for _ in leaves]
        for order in (_by_path(leaves), _by_name(leaves)):
            starts, row = [0], [leaves[at][1] for at in order]
            for text in row:
                starts.append(starts[-1] + len(text))
            for start, end in merged(self._echoes("".join(row))):
                _share_out(start, end, starts, order, found)
        if any(found):
            windows = _windows({part for needle in self._needles for part in _fragments(needle)})
            for at, (_, text) in enumerate(leaves):
                found[at] += _in_characters(text, places(_bytes(text), windows, 1))
        scrubbed = iter([_masked(text, merged(each)) for (_, text), each in zip(leaves, found, strict=True)])
        return map_strings(tree, lambda _: next(scrubbed), numbers=True)

    def cleared(self, trajectory: Trajectory) -> Trajectory:
        """Return `trajectory`; one that echoes a secret scrubbed, without ids, marked `contains_secret`."""
        bare = structs.replace(without_ids(trajectory), contains_secret=True)
        tree = plain(bare)
        if not trajectory.contains_secret and not self.find_in(tree):
            return trajectory
        try:
            return msgspec.convert(self.scrub_in(tree), Trajectory)
        except msgspec.ValidationError:  # a value is a word of ours, such as `assistant`
            return structs.replace(bare, messages=(), turns=(), error=trajectory.error and MASK)

    def _echoes(self, text: str) -> Iterator[ByteRange]:
        data = _bytes(text)
        encoded = places(data, _hits(self._needles)) if self._needles else ()
        return iter(_in_characters(text, [*_hits(self._short)(data), *encoded]))


def without_ids(trajectory: Trajectory) -> Trajectory:
    """Return `trajectory` without token ids, logprobs and the engine's extras."""
    return structs.replace(trajectory, turns=tuple(_bare(turn) for turn in trajectory.turns))


def _bare(turn: Turn) -> Turn:
    generations = tuple(structs.replace(each, token_ids=(), logprobs=(), extras={}) for each in turn.generations)
    return structs.replace(turn, observation=(), generations=generations)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _searchable(value: bytes) -> bool:
    return len(squeezed(value)) >= ENCODED


def _forms(value: bytes) -> Iterator[bytes]:
    """Yield how a value looks in a reading: what looks like an escape in it is resolved, a blank may be a plus sign."""
    for form in {value, value.strip().replace(b" ", b"+")}:
        resolved = form
        for _ in range(DEPTH + 1):
            if _searchable(resolved):
                yield squeezed(resolved)
            resolved = unescaped(resolved)


def _lines(value: bytes) -> list[bytes]:
    """Return the lines of a value of several that give it away by themselves: long ones, each one word of base64."""
    lines = value.replace(b"\\n", b"\n").split()
    return [line for line in lines if len(line) >= LINE and _TOKEN.fullmatch(line)] if len(lines) > 1 else []


def _hits(needles: Iterable[bytes]) -> Hits:
    def hits(data: bytes) -> Iterator[ByteRange]:
        for needle in needles:
            at = data.find(needle)
            while at >= 0:
                yield at, at + len(needle)
                at = data.find(needle, at + 1)

    return hits


def _fragments(needle: bytes) -> Iterator[bytes]:
    return (needle[at : at + FRAGMENT] for at in range(len(needle) - FRAGMENT + 1))


def _windows(fragments: set[bytes]) -> Hits:
    """Find `fragments`: each covers a whole block of the text, so only what lies at known blocks is compared."""
    known = {fragment[at : at + _BLOCK] for fragment in fragments for at in range(_BLOCK)}

    def hits(data: bytes) -> Iterator[ByteRange]:
        for block in range(0, len(data), _BLOCK):
            if data[block : block + _BLOCK] in known:
                for at in range(max(0, block - _BLOCK + 1), block + 1):
                    if data[at : at + FRAGMENT] in fragments:
                        yield at, at + FRAGMENT

    return hits


def _by_path(leaves: Sequence[tuple[str, str]]) -> list[int]:
    """Order the leaves so that those follow each other that are of one kind: all that the tools answered."""
    return sorted(range(len(leaves)), key=lambda at: leaves[at][0])


def _by_name(leaves: Sequence[tuple[str, str]]) -> list[int]:
    """Order the leaves so that those follow each other whose last key is the same: all texts, whoever said them."""
    return sorted(range(len(leaves)), key=lambda at: leaves[at][0].rpartition(".")[2])


def _edges(text: str, edge: int) -> str:
    """Return `text`, the middle of a long one left out: what lies there is not split."""
    return text if len(text) <= 2 * edge else f"{text[:edge]}\0{text[len(text) - edge :]}"


def _share_out(
    start: int, end: int, starts: Sequence[int], order: Sequence[int], found: Sequence[list[ByteRange]]
) -> None:
    """Note the place [start:end] of joined leaves with each leaf that has a part of it."""
    at = bisect_right(starts, start) - 1
    while at < len(order) and starts[at] < end:
        first, last = max(start, starts[at]) - starts[at], min(end, starts[at + 1]) - starts[at]
        if first < last:
            found[order[at]].append((first, last))
        at += 1


def _in_characters(text: str, found: Iterable[ByteRange]) -> list[ByteRange]:
    """Return places in the bytes of `text` as places in its characters."""
    found = list(found)
    if not found or text.isascii():
        return found
    ends = list(accumulate(len(_bytes(character)) for character in text))
    return [(bisect_right(ends, start), bisect_left(ends, end) + 1) for start, end in found]


def _masked(text: str, found: Sequence[ByteRange]) -> str:
    parts: list[str] = []
    end = 0
    for start, stop in found:
        parts += [text[end:start], MASK]
        end = stop
    return "".join([*parts, text[end:]])
