"""The scripted model of the stand-in for SGLang: where a generation ends, what its logprobs are, what the cache holds.

Pure functions and one data structure, at the level of ids. It knows nothing of HTTP, time or faults. Rules are those of
SGLang 0.5.12: the length is looked at first, then stop ids, then stop strings.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

DEFAULT_MAX_NEW_TOKENS = 128
INPUT_HEADROOM = 6  # the scheduler refuses a prompt that does not stay below the context by more than this
OUTPUT_HEADROOM = 2  # and ends a generation this far from the end of the context

Decode = Callable[[Sequence[int]], str]
Score = Callable[[list[int], list[int]], list[float]]
Policy = Callable[[list[int], dict[str, Any]], Sequence[int]]


def stop_strings(sampling: Mapping[str, Any]) -> list[str]:
    """The stop strings of a request, which may give one or several."""
    setting: str | list[str] | None = sampling.get("stop")
    return [setting] if isinstance(setting, str) else setting or []


def cut(
    ids: Sequence[int], sampling: Mapping[str, Any], room: int, decode: Decode | None = None
) -> tuple[list[int], dict[str, Any]]:
    """End `ids` where SGLang does, and say why.

    A stop id is included; so are all ids of a stop string, the last of them whole if it reaches past the string.
    At `max_new_tokens` the reason is the length, whatever the last id is. Ids that end by themselves count as ended by
    the model's end of sequence.
    """
    setting = sampling.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    most = max(0, room if setting is None else min(setting, room))
    stops = () if sampling.get("ignore_eos") else sampling.get("stop_token_ids") or ()
    strings = stop_strings(sampling)
    window = max(map(len, strings), default=0) + 1
    for count, token in enumerate(ids[: max(most - 1, 0)], 1):
        if token in stops:
            return list(ids[:count]), {"type": "stop", "matched": token}
        if strings and decode is not None:
            tail = decode(ids[max(0, count - window) : count])
            for string in strings:
                if string in tail:
                    return list(ids[:count]), {"type": "stop", "matched": string}
    if len(ids) >= most:
        return list(ids[:most]), {"type": "length", "length": most}
    return list(ids), {"type": "stop", "matched": ids[-1] if ids else None}


def text_of(ids: Sequence[int], finish: Mapping[str, Any], sampling: Mapping[str, Any], decode: Decode | None) -> str:
    """The `text` of an answer: without what stopped it, unless `no_stop_trim`; in decimal if there is no decoder."""
    if decode is None:
        return " ".join(map(str, ids))
    matched = finish.get("matched")
    if sampling.get("no_stop_trim") or matched is None:
        return decode(ids)
    return decode(ids).partition(matched)[0] if isinstance(matched, str) else decode(ids[:-1])


def logprobs_of(prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """The logprobs that the stand-in reports for `ids` after `prompt`: fixed by each id and its absolute place."""
    start = len(prompt)
    return [-((7919 * token + 104729 * (start + index)) % 9973 + 1) / 1000 for index, token in enumerate(ids)]


class PrefixCache:
    """Sequences in lexicographic order: the longest common prefix with any of them is one with a neighbour."""

    def __init__(self) -> None:
        self._sequences: list[list[int]] = []

    def match(self, ids: list[int]) -> int:
        """Count the leading ids that some earlier sequence shares with `ids`."""
        at = bisect(self._sequences, ids)
        return max((_common(ids, other) for other in self._sequences[max(at - 1, 0) : at + 1]), default=0)

    def add(self, ids: list[int]) -> None:
        """Remember `ids`; a sequence that it extends is forgotten."""
        at = bisect(self._sequences, ids)
        if at and self._sequences[at - 1] == ids[: len(self._sequences[at - 1])]:
            self._sequences[at - 1] = ids
        else:
            self._sequences.insert(at, ids)


def _common(left: list[int], right: list[int]) -> int:
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    return next(place for place in range(size) if left[place] != right[place])
