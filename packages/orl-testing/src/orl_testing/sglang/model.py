"""The scripted model of the stand-in for SGLang: where a generation ends, what its logprobs are, what the cache holds.

Pure functions and one data structure, at the level of ids. It knows nothing of HTTP, time or faults. Rules are those of
SGLang 0.5.12: the length is looked at first, then stop ids.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

DEFAULT_MAX_NEW_TOKENS = 128
INPUT_HEADROOM = 6  # the scheduler refuses a prompt that does not stay below the context by more than this
OUTPUT_HEADROOM = 2  # and ends a generation this far from the end of the context

Score = Callable[[list[int], list[int]], list[float]]
Policy = Callable[[list[int], dict[str, Any]], Sequence[int]]


def cut(ids: Sequence[int], sampling: Mapping[str, Any], room: int) -> tuple[list[int], dict[str, Any]]:
    """End `ids` where SGLang does, and say why.

    A stop id is included. At `max_new_tokens` the reason is the length, whatever the last id is. Ids that end by
    themselves count as ended by the model's end of sequence.
    """
    setting = sampling.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    most = max(0, room if setting is None else min(setting, room))
    stops = () if sampling.get("ignore_eos") else sampling.get("stop_token_ids") or ()
    for count, token in enumerate(ids[: max(most - 1, 0)], 1):
        if token in stops:
            return list(ids[:count]), {"type": "stop", "matched": token}
    if len(ids) >= most:
        return list(ids[:most]), {"type": "length", "length": most}
    return list(ids), {"type": "stop", "matched": ids[-1] if ids else None}


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
