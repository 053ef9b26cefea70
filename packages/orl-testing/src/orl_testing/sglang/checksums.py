"""Checksums of the weights that the stand-in for SGLang was sent, by the names and with the fusions of the engine.

It reads safetensors by itself and needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_FUSED = (
    (re.compile(r"\.(q|k|v)_proj\."), ".qkv_proj."),
    (re.compile(r"\.(gate|up)_proj\."), ".gate_up_proj."),
)


def checksums_of(folder: str | Path) -> dict[str, str]:
    """Return the checksums of the safetensors in `folder`; empty if there are none."""
    files = sorted(Path(folder).glob("*.safetensors")) if folder else []
    return fused_checksums(dict(tensor for file in files for tensor in _tensors(file)))


def fused_checksums(tensors: Mapping[str, bytes]) -> dict[str, str]:
    """Return a checksum of each tensor of the engine. Parts of a fused one are joined by name, without a tied head."""
    fused: dict[str, list[bytes]] = {}
    for name, data in sorted(tensors.items()):
        for parts, whole in _FUSED:
            name = parts.sub(whole, name)  # noqa: PLW2901
        fused.setdefault(name, []).append(data)
    return {name: hashlib.blake2b(b"".join(parts), digest_size=8).hexdigest() for name, parts in fused.items()}


def _tensors(file: Path) -> Iterator[tuple[str, bytes]]:
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    for name, entry in json.loads(content[8 : 8 + size]).items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            yield name, content[8 + size + start : 8 + size + end]
