"""Count lines of code by package: `python -m tools.lines`. Blanks, comments, docstrings and imports do not count."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Return the number of lines of Python source that hold code."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {line for one in tokens if one.type not in skipped for line in range(one.start[0], one.end[0] + 1)}
    for node in ast.walk(ast.parse(source)):
        others: list[ast.stmt] = [node] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            others.append(node.body[0])
        for other in others:
            lines -= set(range(other.lineno, (other.end_lineno or other.lineno) + 1))
    return len(lines)


def main(root: Path = ROOT) -> int:
    """Print a row for each package, for the product without orl-testing, and for the tests."""
    counts: dict[str, tuple[int, int]] = {}
    for folder in (*sorted(root.glob("packages/*")), *sorted(root.glob("apps/*")), root / "tests"):
        texts = [file.read_text("utf-8") for file in sorted(folder.rglob("*.py"))]
        counts[folder.name] = sum(map(code_lines, texts)), sum(text.count("\n") for text in texts)
    product = [count for name, count in counts.items() if name not in ("orl-testing", "tests")]
    counts["product"] = sum(code for code, _ in product), sum(whole for _, whole in product)
    for name, (code, whole) in counts.items():
        print(f"{name:16} {code:7,} {whole:8,}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
