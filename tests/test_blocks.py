"""Code blocks of the documentation: Python runs, YAML loads as a configuration, command lines of orl and just parse."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from orl_core.config import decode_config
from orl_core.config.yaml import read
from orl_launcher.cli import Parser
from orl_launcher.main import COMMANDS

from tests.kit.tokenizers import build, template

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENVIRONMENTS = {"environments": {"Organization/Environment": {}}}  # for a block that shows other keys alone
JUSTFILE = (ROOT / "justfile").read_text("utf-8")
RECIPES = dict(re.findall(r"^([a-z][a-z-]*)(?: [^:\n]*)?:(?!=)[^\n]*\n((?:    [^\n]*\n)*)", JUSTFILE, re.M))
NIGHTLY = re.findall(r"^_([a-z0-9]+) \*arguments:", JUSTFILE, re.M)
# Programs that are not ours.
OTHERS = {
    "pip",
    "git",
    "cd",
    "export",
    "python",
    "python3",
    "ray",
    "uv",
    "vllm",
    "zstdcat",
}
LEAST = 50  # blocks


class Block(NamedTuple):
    """A fenced block. `title` names the file that the page says it is."""

    page: str
    language: str
    title: str
    text: str


def blocks() -> Iterator[Block]:
    """Yield the blocks of every page, in order."""
    for page in PAGES:
        for info, text in FENCE.findall(page.read_text("utf-8")):
            language, _, rest = info.partition(" ")
            yield Block(
                page.relative_to(ROOT).as_posix(), language, rest.removeprefix('title="').removesuffix('"'), text
            )


BLOCKS = [*blocks()]


def of(language: str) -> list[Any]:
    """Return the blocks of `language` as parameters of a test, each named after its page."""
    chosen = [block for block in BLOCKS if block.language == language]
    return [pytest.param(block, id=f"{block.page}-{n}") for n, block in enumerate(chosen)]


def test_every_block_has_a_language() -> None:
    assert [block for block in BLOCKS if block.language not in ("python", "yaml", "bash", "text")] == []
    assert len(BLOCKS) >= LEAST


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS if block.language == "python"}))
def test_python_of_a_page_runs_in_order(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build(template("qwen3")).backend_tokenizer.save("tokenizer.json")
    Path("chat_template.jinja").write_text(template("qwen3"), "utf-8")
    names: dict[str, Any] = {}
    for block in BLOCKS:
        if (block.page, block.language) == (page, "python"):
            names["__name__"] = block.title.removesuffix(".py") or "page"
            exec(compile(block.text, page, "exec"), names)


@pytest.mark.parametrize("block", of("yaml"))
def test_yaml_loads_as_a_configuration(block: Block, tmp_path: Path) -> None:
    file = tmp_path / "block.yaml"
    file.write_text(block.text, "utf-8")
    decode_config(ENVIRONMENTS | read(file), block.page)


@pytest.mark.parametrize("block", of("bash"))
def test_commands_parse(block: Block) -> None:
    for words in commands_of(block.text):
        check(words)


def commands_of(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell's `text`. A quoted word may have several lines."""
    waiting = ""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(waiting + line, comments=True)
        except ValueError:
            waiting += f"{line}\n"
            continue
        waiting = ""
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            words.pop(0)
        for separator in ("|", "&&"):
            words = words[: words.index(separator)] if separator in words else words
        if words:
            yield words
    assert not waiting


def check(words: list[str]) -> None:
    """Check the words of one command, as far as it is one of this repository."""
    line = " ".join(words)
    if words[:2] == ["uv", "run"]:
        words = words[4:] if words[2:3] == ["--extra"] else words[2:]
    program, *words = words
    program = program.removeprefix(".venv-gpu/bin/")
    if program == "just":
        recipe, *words = words
        assert recipe in RECIPES, line
        assert recipe != "nightly" or words[0] in NIGHTLY, line
        found = re.search(r"\borl ([a-z-]+(?: (?:local|slime|miles))?)", RECIPES[recipe])
        if found is None:
            return
        program, words = "orl", [*found[1].split(), *words]
    if program != "orl":
        assert program in OTHERS, line
        return
    command, *words = words
    if command == "--version":
        return
    assert command in COMMANDS, line
    words = [word for word in words if word != "..."]
    Parser(command, words).parse()
    for option, value in pairwise(words):
        assert option != "--config" or not value.startswith("configs/") or (ROOT / value).is_file(), line
