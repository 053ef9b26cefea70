"""Reads what W&B logs offline."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, FULL, LAST = 1 << 15, 1, 4


def records_of(file: Path) -> Iterator[bytes]:
    """The records of a W&B file, a log like LevelDB's: 7 bytes, then blocks of 32 KiB in pieces (CRC, length, kind)."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:  # too short for a piece: padding
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            yield whole
            whole = b""


def rows_of(file: Path) -> Iterator[dict[str, str]]:
    """The logged rows: names and values in JSON."""
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    for data in records_of(file):
        record = messages.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            yield {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
