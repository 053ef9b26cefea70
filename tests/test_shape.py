"""The size of product code, 300 lines a module and 50 a function, and the public names of its packages.

Ruff holds the six parameters of a function (`max-args`).
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("packages", "apps") for path in ROOT.glob(f"{folder}/*/src/**/*.py"))
MODULE_LINES, FUNCTION_LINES = 300, 50


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def too_big(source: str) -> Iterator[str]:
    """Yield what is wrong with the size of a module."""
    lines = len(source.splitlines())
    if lines > MODULE_LINES:
        yield f"{lines} lines, at most {MODULE_LINES}: find the part that is a module of its own"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES:
            yield f"{node.name}: {lines} lines, at most {FUNCTION_LINES}"


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_module_is_small(path: Path) -> None:
    assert list(too_big(path.read_text(encoding="utf-8"))) == []


def test_negative_control_what_is_too_big_is_found() -> None:
    body = "\n".join(["    x = 1"] * FUNCTION_LINES)
    source = f"def long():\n{body}\n" + "\n" * MODULE_LINES
    assert [text.split(",")[0] for text in too_big(source)] == [
        f"{FUNCTION_LINES + MODULE_LINES + 1} lines",
        f"long: {FUNCTION_LINES + 1} lines",
    ]


PUBLIC = {
    "orl_core.config": (
        "Backend EnvironmentConfig EvalConfig GroupRewardConfig Reduction RolloutConfig RunConfig Secret Secrets "
        "SharedOptions TrainerConfig decode_config load_config"
    ),
    "orl_core.render": "Certificate Check Renderer Tokenizer",
    "orl_core.tools": "Mark Marked TOOL_FORMATS ToolFormat delimiters parse parse_marked read_marked thinking",
    "orl_rollout.openreward": "OpenRewardClient OpenRewardSession",
    "orl_testing": (
        "Fault FaultKind Mishap MishapKind Pace Proxy Recorded ScriptedEngine ScriptedSession SglangServer logprobs_of "
        "seeded_faults"
    ),
    "orl_testing.environments": (
        "Compared Conversation Duplicates Echo Endless Failing FailingSetup FlakySetup GALLERY Hanging HangingTeardown "
        "INFINITE_REWARD Indented NAN_REWARD NanReward OUTPUTS PIXEL Picture Served SlowSetup Telltale Terminal "
        "Trouble drawers serve serve_apart"
    ),
}


@pytest.mark.parametrize("package", PUBLIC)
def test_public_names_stay(package: str) -> None:
    """Users import these: a name that goes or comes is a decision, written down here."""
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC[package].split()
    assert all(hasattr(module, name) for name in module.__all__)


def test_every_package_with_public_names_is_listed() -> None:
    listed = (named(path) for path in SOURCES if path.name == "__init__.py" and "__all__" in path.read_text("utf-8"))
    assert sorted(path.split("/src/")[1].removesuffix("/__init__.py").replace("/", ".") for path in listed) == [*PUBLIC]
