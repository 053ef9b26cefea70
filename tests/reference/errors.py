"""The page of every error message: read from the sources, each with `…` in place of its values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import orl_core.errors
from orl_core.errors import OrlError

ROOT = Path(__file__).parents[2]
AREAS = {
    "The command line": "apps/launcher",
    "Configuration, chat templates, parsers": "packages/orl-core",
    "Environments, engines, tasks, journal, upload": "packages/orl-rollout",
    "Agents of your own": "packages/orl-gateway",
    "local": "packages/orl-local",
    "slime and miles": "packages/orl-cluster",
    "slime": "packages/orl-slime",
    "miles": "packages/orl-miles",
    "Tinker": "packages/orl-tinker",
}
INTRODUCTION = """\
# Error messages

This page is made of the program's sources. It lists the messages that the program raises. `…` stands for a
value: a file, a key, an address. Find a part of your message with Ctrl-F. Each message says what to do.
[Troubleshooting](troubleshooting.md) has more on the frequent ones.
"""
CLASSES = {
    name: kind for name, kind in vars(orl_core.errors).items() if isinstance(kind, type) and issubclass(kind, OrlError)
}
RAISED = {*CLASSES, "Lacking", "TypeError", "UsageError", "ValueError"}


def page() -> str:
    """Return the page in Markdown."""
    parts = [INTRODUCTION, "\n## Kinds\n\n| kind | meaning |\n|---|---|\n"]
    parts += [f"| `{name}` | {(kind.__doc__ or '').splitlines()[0]} |\n" for name, kind in CLASSES.items()]
    for area, place in AREAS.items():
        found = sorted({*messages(ROOT / place)})
        parts += [f"\n## {area}\n\n", *(f"- {_literal(text)}\n" for text in found)]
    return "".join(parts)


def messages(place: Path) -> Iterator[str]:
    """Yield the messages that the sources below `place` raise, with `…` for their values."""
    for file in sorted(place.glob("src/**/*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                kind = node.exc.func
                name = kind.attr if isinstance(kind, ast.Attribute) else getattr(kind, "id", "")
                text = " ".join(_text(node.exc.args[0]).split())
                if name in RAISED and sum(word.isalpha() for word in text.split()) >= 2:
                    yield re.sub("…+", "…", text)


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return "…"


def _literal(text: str) -> str:
    """Return `text` in Markdown that shows it as it is."""
    return f"``{' ' if text.startswith('`') else ''}{text}{' ' if text.endswith('`') else ''}``"
