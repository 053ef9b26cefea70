"""Ids and logprobs in a record of JSON: numpy's name of their type, a colon, and their bytes in base64.

`np.frombuffer(base64.b64decode(text.partition(":")[2]), text.partition(":")[0])` reads them. Packing loses nothing:
logprobs take four bytes each if that holds them exactly, else eight. The module knows nothing of trajectories.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence

_CODES = {"<i4": "i", "<f4": "f", "<f8": "d"}


def pack_ids(ids: Sequence[int]) -> str | list[int]:
    """Pack `ids`; return them as they are if one is no 32-bit integer."""
    try:
        return _text("<i4", _bytes("<i4", ids))
    except struct.error:
        return list(ids)


def pack_logprobs(logprobs: Sequence[float]) -> str:
    """Pack finite numbers."""
    try:
        short = _bytes("<f4", logprobs)
    except OverflowError:
        return _text("<f8", _bytes("<f8", logprobs))
    if _numbers("<f4", short) == tuple(logprobs):
        return _text("<f4", short)
    return _text("<f8", _bytes("<f8", logprobs))


def unpack(packed: str | Sequence[float]) -> tuple[float, ...]:
    """Return the numbers that were packed.

    Raises:
        KeyError, ValueError, struct.error: they were not packed here.
    """
    if not isinstance(packed, str):
        return tuple(packed)
    kind, _, text = packed.partition(":")
    return _numbers(kind, base64.b64decode(text, validate=True))


def _bytes(kind: str, numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}{_CODES[kind]}", *numbers)


def _numbers(kind: str, raw: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(raw) // int(kind[-1])}{_CODES[kind]}", raw)


def _text(kind: str, raw: bytes) -> str:
    return f"{kind}:{base64.b64encode(raw).decode()}"
