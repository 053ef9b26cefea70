"""`orl convert TRAINER` in an empty folder: what it prints, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.saved import hugging_face, saved
from tests.two_pythons import planning
from tests.two_pythons.environment import ROOT

SOURCES = {"hf": "Qwen3-0.6B", "megatron": "megatron", "fsdp": "fsdp"}


def folders(working: Path) -> None:
    """A checkpoint of each format."""
    hugging_face(working / SOURCES["hf"])
    saved(working / SOURCES["megatron"], 19)
    saved(working / SOURCES["fsdp"], 20, fsdp=True)


def planned(capsys: pytest.CaptureFixture[str], trainer: str, *argv: str) -> str:
    """Return what a dry run prints. Its exit code tells whether the conversion would start."""
    return planning.shown(capsys, ["convert", trainer, "--dry-run", *argv])


def refused(capsys: pytest.CaptureFixture[str], trainer: str, *argv: str) -> str:
    """The one line with which a dry run ends."""
    return planning.ended(capsys, ["convert", trainer, "--dry-run", *argv])


def assert_golden(trainer: str, name: str, shown: str) -> None:
    """Hold a plan against the file of its name."""
    golden = ROOT / "tests" / "golden" / trainer / f"convert_{name}.txt"
    assert shown == golden.read_text(encoding="utf-8")
