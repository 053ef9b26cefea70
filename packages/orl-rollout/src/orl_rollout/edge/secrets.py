"""Secrets: where their values come from, how echoes of them are found in text and kept out of files (law L6).

A value comes from the configuration, or from a variable with the secret's name or its upper-case form. An empty value
takes a secret away. An echo is a value in one of its forms (`_forms`), also split over blocks of one kind. Scrub a text
before it is folded or cut: a part of a form is not found. One `str.find` for each form is 13 times as fast as one
regular expression of all forms.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, quote_plus

import msgspec
from msgspec import structs
from orl_core import ConfigError, Trajectory, Turn
from orl_core.config import RunConfig, Secret, Secrets
from orl_core.credentials import has_login, takes_secret
from orl_core.text import leaves_in, map_strings, plain

PLATFORM_KEY = "OPENREWARD_API_KEY"
MASK = "[secret]"
SHORTEST = 4  # characters: shorter values occur in any text by chance and are not searched for
ENCODED = 8  # characters: shorter values are searched for only as they are
LINE = 24  # characters: a line of this length gives a value of several lines away, such as a line of a PEM key

Range = tuple[int, int]  # characters [start:end]

_PASSWORD = re.compile(r"://[^/?#\s@]*:([^/?#\s@]+)@")
_ESCAPE = re.compile("%[0-9A-F]{2}")
_URL_SAFE = str.maketrans("+/", "-_")


def api_key() -> str:
    """Return the platform's key, from the environment of this process; empty if there is none."""
    return os.environ.get(PLATFORM_KEY, "")


class SecretEntry(NamedTuple):
    """A secret of the configuration. `holder` is the environment in whose `secrets` it is, "" the top level.

    `literal` is its value in the configuration, None if a variable has it.
    """

    name: str
    holder: str
    literal: str | None
    hosts: tuple[str, ...]

    @property
    def own_variable(self) -> str:
        """Return the variable of this entry alone, from which workers read a value that the configuration gives."""
        return "ORL_SECRET_" + re.sub(r"\W", "_", f"{self.name}__{self.holder}" if self.holder else self.name).upper()

    @property
    def variables(self) -> tuple[str, ...]:
        """Return the variables that a user sets: the secret's name, and its upper-case form."""
        return tuple(dict.fromkeys((self.name, self.name.upper())))

    @property
    def value(self) -> str:
        """Return the value, "" if there is none."""
        candidates = (os.environ.get(variable) for variable in (self.own_variable, *self.variables))
        return next(filter(None, candidates), "") if self.literal is None else self.literal


def entries_of(config: RunConfig, env_name: str) -> list[SecretEntry]:
    """Return the secrets of one environment. Its own replace those of the run; an empty value takes one away."""
    entries = {
        entry.name: entry
        for entry in [*_held(config.secrets, ""), *_held(config.environments[env_name].secrets, env_name)]
    }
    return [entry for entry in entries.values() if entry.literal != ""]


def all_entries(config: RunConfig) -> list[SecretEntry]:
    """Return every secret of the configuration, the run's own first."""
    own = [entry for name, environment in config.environments.items() for entry in _held(environment.secrets, name)]
    return [*_held(config.secrets, ""), *own]


def resolve_secrets(config: RunConfig, env_name: str) -> dict[str, Secret]:
    """Return the secrets of one environment with their values. One without a value is left out."""
    return {
        entry.name: Secret(value=entry.value, hosts=entry.hosts)
        for entry in entries_of(config, env_name)
        if entry.value
    }


def unset_secrets(config: RunConfig, env_name: str) -> list[SecretEntry]:
    """Return the secrets of one environment that have no value, here or in the configuration."""
    return [entry for entry in entries_of(config, env_name) if not entry.value]


def unset(entry: SecretEntry) -> str:
    """Say that a secret has no value, and what to do."""
    return (
        f"the secret `{entry.name}` has no value and is left out. If it is needed, set {' or '.join(entry.variables)}"
    )


def unset_in(config: RunConfig) -> list[str]:
    """Return a line for each secret that has no value in this process, and that rollouts leave out."""
    return list(dict.fromkeys(unset(entry) for name in config.environments for entry in unset_secrets(config, name)))


def missing_key(config: RunConfig) -> str:
    """Name the key that an environment needs and this process does not have."""
    needed = any(one.base_url is None or one.send_api_key for one in config.environments.values())
    return f"not set in the environment: {PLATFORM_KEY}" if needed and not api_key() else ""


def _held(secrets: Secrets, holder: str) -> Iterator[SecretEntry]:
    for name, entry in secrets.items():
        hosted = entry if isinstance(entry, Secret) else Secret(value=entry)
        yield SecretEntry(name=name, holder=holder, literal=hosted.value, hosts=hosted.hosts)


def _values(config: RunConfig) -> list[tuple[str, str]]:
    """Return every secret that `config` names and this process has, and the platform's key, each with its name."""
    named = [(entry.name, entry.value) for entry in all_entries(config)]
    variables = config.agent_config.env if config.agent_config else {}  # of the agent's program
    names = [name for name, value in variables.items() if value is None and takes_secret(name)]
    return [*named, *((name, os.environ.get(name, "")) for name in names), (PLATFORM_KEY, api_key())]


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
    """Finds echoes of secret values in text, in the forms that programs print: see `_forms`.

    Values of 4 to 7 characters are found only as they are, shorter ones not at all: text often holds them by chance.
    """

    def __init__(self, values: Iterable[str]) -> None:
        secrets = {each.strip() for value in values for each in (value, *_PASSWORD.findall(value))}
        self._forms = sorted({form for value in secrets if len(value) >= SHORTEST for form in _forms(value)})
        self._longest = max(map(len, self._forms), default=0)

    @classmethod
    def of(cls, config: RunConfig) -> Scrubber:
        """Return a scrubber of the secrets of `config`, the platform's key, and logins in the process environment.

        A login is part of an address, such as a proxy's.
        """
        return cls([*(value for _, value in _values(config)), *filter(has_login, os.environ.values())])

    def settled(self, text: str) -> int:
        """Return the largest prefix length of a streamed `text` that can be flushed without splitting an echo."""
        cut = max(0, len(text) - self._longest)
        for start, end in reversed(self._echoes(text)):
            cut = start if start < cut < end else cut
        return cut

    def find(self, text: str) -> bool:
        """Return whether `text` echoes a secret."""
        return any(form in text for form in self._forms)

    def scrub(self, text: str) -> str:
        """Return `text` with every echo replaced by `[secret]`."""
        return _masked(text, self._echoes(text))

    def find_in(self, tree: object) -> bool:
        """Return whether strings and numbers of `tree`, plain JSON, echo a secret, also joined."""
        return bool(self._forms) and self.find("".join(text for _, (_, text) in _by_path(tree)))

    def scrub_in(self, tree: Any) -> Any:
        """Return `tree`, of plain JSON types, with strings, keys and numbers scrubbed."""
        ordered = _by_path(tree)
        echoes, start = self._echoes("".join(text for _, (_, text) in ordered)), 0
        scrubbed: dict[int, str] = {}
        for at, (_, text) in ordered:
            end = start + len(text)
            inside = [(max(first, start) - start, min(last, end) - start) for first, last in echoes]
            scrubbed[at] = _masked(text, [(first, last) for first, last in inside if first < last])
            start = end
        texts = iter(sorted(scrubbed.items()))
        return map_strings(tree, lambda _: next(texts)[1], numbers=True)

    def cleared(self, trajectory: Trajectory) -> Trajectory:
        """Return `trajectory`. If it echoes a secret: scrubbed, without ids, marked `contains_secret`."""
        if not self._forms and not trajectory.contains_secret:
            return trajectory
        bare = structs.replace(without_ids(trajectory), contains_secret=True)
        tree = plain(bare)
        if not trajectory.contains_secret and not self.find_in(tree):
            return trajectory
        try:
            return msgspec.convert(self.scrub_in(tree), Trajectory)
        except msgspec.ValidationError:  # a value is a word of our schema, such as `assistant`
            return structs.replace(bare, messages=(), turns=(), error=trajectory.error and MASK)

    def _echoes(self, text: str) -> list[Range]:
        return _merged(place for form in self._forms for place in _places(form, text))


def without_ids(trajectory: Trajectory) -> Trajectory:
    """Return `trajectory` without token ids, logprobs and the engine's extras."""
    return structs.replace(trajectory, turns=tuple(_bare(turn) for turn in trajectory.turns))


def _bare(turn: Turn) -> Turn:
    generations = tuple(structs.replace(each, token_ids=(), logprobs=(), extras={}) for each in turn.generations)
    return structs.replace(turn, observation=(), generations=generations)


def _forms(value: str) -> Iterator[str]:
    """Yield the forms of a value: literal, JSON-escaped, percent-encoded, in base64 at each offset, and its long lines.

    The letters of base64 that the text around the value decides are left out. A line with a blank is no line of a key.
    """
    yield value
    if len(value) < ENCODED:
        return
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    data = value.encode("utf-8", "surrogatepass")
    for quoted in (quote(data), quote(data, safe=""), quote(data, safe="!'()*"), quote_plus(data)):
        yield quoted
        yield _ESCAPE.sub(lambda escape: escape[0].lower(), quoted)
    for offset in range(3):
        letters = base64.b64encode(bytes(offset) + data).decode()
        letters = letters[(0, 2, 3)[offset] : (offset + len(data)) * 8 // 6]
        yield letters
        yield letters.translate(_URL_SAFE)
    lines = value.replace("\\n", "\n").splitlines()
    if len(lines) > 1:
        yield from (line for line in map(str.strip, lines) if len(line) >= LINE and len(line.split()) == 1)


def _places(form: str, text: str) -> Iterator[Range]:
    at = text.find(form)
    while at >= 0:
        yield at, at + len(form)
        at = text.find(form, at + 1)


def _merged(places: Iterable[Range]) -> list[Range]:
    """Return places in order. Places that overlap become one."""
    merged: list[Range] = []
    for start, end in sorted(places):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _by_path(tree: object) -> list[tuple[int, tuple[str, str]]]:
    """Return the leaves of `tree`, numbered and ordered by path, so that leaves of one kind are adjacent."""
    return sorted(enumerate(leaves_in(tree)), key=lambda leaf: leaf[1][0])


def _masked(text: str, places: Sequence[Range]) -> str:
    parts: list[str] = []
    end = 0
    for start, stop in places:
        parts += [text[end:start], MASK]
        end = stop
    return "".join([*parts, text[end:]])
