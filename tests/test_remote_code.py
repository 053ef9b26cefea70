"""No checkpoint's own code is run: every load from a hub or a folder says so itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOADS = ("from_pretrained", "from_config", "load_dataset", "pipeline")


def loads(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in LOADS:
                yield node


def refuses_code(call: ast.Call) -> bool:
    said = {word.arg: word.value for word in call.keywords}
    value = said.get("trust_remote_code")
    return isinstance(value, ast.Constant) and value.value is False


def test_every_load_of_a_checkpoint_refuses_its_code():
    found = {
        f"{path.relative_to(ROOT)}:{call.lineno}": refuses_code(call)
        for folder in ("packages", "apps", "benchmarks")
        for path in (ROOT / folder).rglob("*.py")
        if any(name in (source := path.read_text(encoding="utf-8")) for name in LOADS)
        for call in loads(ast.parse(source))
    }
    assert found
    assert [where for where, refuses in found.items() if not refuses] == []


def test_a_load_that_does_not_say_so_is_found():
    (call,) = loads(ast.parse("AutoTokenizer.from_pretrained(name, trust_remote_code=trust)"))
    assert not refuses_code(call)
