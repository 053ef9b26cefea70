"""Frameworks that play through the gateway: what each needs, its rows and its counts.

Each has an environment of its own in .frameworks/, with the versions of one day, because their packages exclude each
other. `row_of` makes the table of tests/agents/seen.md.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Literal

from msgspec import Struct
from orl_core.config import AgentConfig

from tests.kit.guessing import GUESSES

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"
DAY = "2026-11-24"  # the index of this day
PYTHON = "3.11"
SECONDS = 180.0
WON = "1.0"
CHAT, RESPONSES = "Chat Completions", "Responses"
HEAD = "| framework | version | API | calls | rows | reward | counted |\n|---|---|---|---|---|---|---|\n"
CODE = "Take the middle.\n<code>\nprint(guess(number=NUMBER))\n</code>"
REACT = 'Thought: Take the middle.\nAction: guess\nAction Input: {"number": NUMBER}'
FIELDS = (
    "[[ ## next_thought ## ]]\nTake the middle.\n\n[[ ## next_tool_name ## ]]\nguess\n\n"
    '[[ ## next_tool_args ## ]]\n{"number": NUMBER}\n\n[[ ## completed ## ]]'
)


class Setup(Struct, frozen=True, kw_only=True):
    """A framework as it plays. The first of `packages` is the framework, pinned; `form` is how its model calls in text.

    `rows` and `counts` are those that its episode must have.
    """

    title: str
    program: str
    packages: tuple[str, ...]
    argument: str = ""
    api: str = CHAT
    form: str = ""
    forced_calls: Literal["refuse", "sample"] = "refuse"
    rows: int = 1
    counts: dict[str, int] = {}

    @property
    def folder(self) -> Path:
        return ROOT / ".frameworks" / Path(self.program).stem

    @property
    def runs_on_node(self) -> bool:
        return self.program.endswith(".mjs")

    def agent(self, home: Path) -> AgentConfig:
        """Return the section `agent`. `home` is where frameworks leave what they keep between runs."""
        program = self.folder / ("node_modules/.bin/node" if self.runs_on_node else "bin/python")
        shared = str(ROOT / "examples" / "agents")
        return AgentConfig(
            command=(str(program), str(PROGRAMS / self.program), *filter(None, [self.argument])),
            env={"HOME": str(home), "PYTHONPATH": shared, "FRAMEWORK": str(self.folder)},
            timeout=SECONDS,
            forced_calls=self.forced_calls,
        )

    def install(self) -> None:
        """Install the packages, unless these are installed."""
        installed, wanted = self.folder / "installed.txt", "\n".join((DAY, *self.packages))
        if installed.is_file() and installed.read_text("utf-8") == wanted:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        if self.runs_on_node:
            commands = [["npm", "install", "--silent", "--no-audit", "--no-fund", "--before", DAY, *self.packages]]
            (self.folder / "package.json").write_text("{}", encoding="utf-8")
        else:
            install = ["uv", "pip", "install", "--quiet", "--python", "bin/python", "--exclude-newer", DAY]
            commands = [["uv", "venv", "--quiet", "--clear", "--python", PYTHON, "."], [*install, *self.packages]]
        for command in commands:
            subprocess.run(command, cwd=self.folder, check=True)
        installed.write_text(wanted, encoding="utf-8")


SMOLAGENTS = {
    "program": "smolagents_agent.py",
    "packages": ("smolagents[mcp,openai]==1.26.0", "mcp<2"),
    "rows": 4,
}
PYDANTIC_AI = {"program": "pydantic_ai_agent.py", "packages": ("pydantic-ai-slim[mcp,openai]==2.68.0",)}

SETUPS = [
    Setup(title='smolagents, `tool_choice="auto"`', argument="auto", **SMOLAGENTS),
    Setup(title="smolagents, its defaults (1)", argument="required", forced_calls="sample", **SMOLAGENTS),
    Setup(title="smolagents CodeAgent", argument="code", form=CODE, **SMOLAGENTS),
    Setup(
        title="CrewAI",
        program="crewai_agent.py",
        packages=("crewai==1.15.30",),
        counts={"dropped_text": 3},
    ),
    Setup(title="pydantic-ai", argument="str", **PYDANTIC_AI),
    Setup(
        title="pydantic-ai, `output_type=dict` (1)",
        argument="dict",
        forced_calls="sample",
        **PYDANTIC_AI,
    ),
    Setup(
        title="LlamaIndex ReActAgent",
        program="llama_index_agent.py",
        packages=(
            "llama-index-core==0.14.25",
            "llama-index-llms-openai-like",
            "llama-index-tools-mcp",
        ),
        form=REACT,
        rows=4,
    ),
    Setup(
        title="DSPy ReAct",
        program="dspy_agent.py",
        packages=("dspy==3.4.1",),
        form=FIELDS,
        rows=4,
    ),
    Setup(
        title="Mastra",
        program="mastra_agent.mjs",
        packages=("@mastra/core@1.71.0", "@mastra/mcp@2.0.0", "node@22.23.3", "zod@4.1.12"),
        counts={"dropped_text": 2},
    ),
    Setup(
        title="Semantic Kernel",
        program="semantic_kernel_agent.py",
        packages=("semantic-kernel[mcp]==1.45.0",),
        counts={"dropped_text": 3},
    ),
    Setup(
        title="instructor, `Mode.TOOLS` (1)",
        program="instructor_agent.py",
        packages=("instructor==1.17.0",),
        forced_calls="sample",
    ),
    Setup(
        title="Microsoft Agent Framework",
        program="agent_framework_agent.py",
        packages=("agent-framework-core==1.23.0", "agent-framework-openai==1.17.0", "mcp", "tenacity"),
        api=RESPONSES,
    ),
    Setup(
        title="AutoGen",
        program="autogen_agent.py",
        packages=("autogen-agentchat==0.7.5", "autogen-ext[mcp,openai]==0.7.5", "mcp<2"),
    ),
    Setup(
        title="LiteLLM",
        program="litellm_agent.py",
        packages=("litellm==1.106.2", "mcp"),
        api=RESPONSES,
    ),
]


def row_of(setup: Setup) -> str:
    """Return the row of the table."""
    version = setup.packages[0].rpartition("@" if setup.runs_on_node else "==")[2]
    counts = ", ".join(f"{count} {name}" for name, count in setup.counts.items()) or "none"
    return f"| {' | '.join((setup.title, version, setup.api, str(GUESSES), str(setup.rows), WON, counts))} |"
