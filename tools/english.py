"""Find English that reads as translated: `python -m tools.english [FILE ...]`. `just lint` runs it.

It reads comments, docstrings and other texts of Python files, the names in product code, and the prose of documents.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RULES = {
    r"\bwhere (?:it|they|there|that|nothing|one|no)\b": 'write "if", not "where"',
    r"\bstands?\b(?!-| for\b)": 'write "is", not "stands"',
    r"(?<!there )\bis none\b(?! of\b)": 'write "is not one", not "is none"',
    r"\b[Bb]esides?\b": 'write "in addition to" or "next to", not "beside"',
    r"\bgoes on\b|\bgo on\b": 'write "continues", not "goes on"',
    r"\bmishaps?\b": 'write "fault", not "mishap"',
}
NAMES = {"told", "said", "made", "asked", "found", "given"}  # participles: a name is a noun
TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
UNREAD = ("CHANGELOG.md", "english.py", "test_english.py")  # the past, and the rules themselves
FENCED = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def findings(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, advice and text of each place in a file that breaks a rule."""
    text = path.read_text("utf-8")
    python = path.suffix == ".py"
    parts = python_texts(text) if python else [(1, FENCED.sub(lambda code: "\n" * code[0].count("\n"), text))]
    for first, part in parts:
        for rule, advice in RULES.items():
            for match in re.finditer(rule, part):
                line = first + part.count("\n", 0, match.start())
                yield line, advice, match[0]
    if python and {"packages", "apps"} & {*path.parts}:
        yield from (
            (line, f"name it by a noun, not `{name}`", name) for line, name in bound_names(text) if name in NAMES
        )


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each comment and string of Python source."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in TEXTS:
            yield token.start[0], token.string


def bound_names(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and name of each variable, parameter, field and function that Python source binds."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name


def tracked_files() -> list[Path]:
    """List the Python files and documents of the repository, but for UNREAD."""
    listed = subprocess.run(["git", "ls-files", "-z", "*.py", "*.md"], cwd=ROOT, capture_output=True, check=True)
    names = listed.stdout.decode().strip("\0").split("\0")
    return [ROOT / name for name in names if (ROOT / name).is_file() and Path(name).name not in UNREAD]


def main(names: list[str]) -> int:
    """Print each finding as `file:line: advice`. Return 1 if there is one."""
    count = 0
    for path in [Path(name) for name in names] or tracked_files():
        for line, advice, text in findings(path):
            print(f"{path.resolve().relative_to(ROOT).as_posix()}:{line}: {advice} ({text})")
            count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
