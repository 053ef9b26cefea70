"""The command line agents of examples/agents: how each is played, and the table of seen.md.

`just nightly agents` installs them. `just nightly agents --write-table` writes what it saw into the table.
"""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct
from orl_core.config import AgentConfig
from orl_rollout import stats_of
from orl_rollout.results.outcome import Outcome

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "agents"
PAGE = Path(__file__).parent / "seen.md"
SECONDS = 180.0
HEAD = "| agent | version | API | calls of the model | rows |\n|---|---|---|---|---|\n"


class Program(Struct, frozen=True, kw_only=True):
    """One agent. `script` is its file in examples/agents, `package` its name on npm, `rows` how many it must make."""

    title: str
    script: str
    package: str
    api: str
    env: dict[str, str | None] = {}
    rows: int = 1

    @property
    def agent(self) -> AgentConfig:
        return AgentConfig(command=("sh", str(EXAMPLES / self.script)), env=self.env, timeout=SECONDS)

    @property
    def version(self) -> str:
        return json.loads((EXAMPLES / "package.json").read_text("utf-8"))["dependencies"][self.package]


PROGRAMS = [
    Program(title="Claude Code", script="claude_code.sh", package="@anthropic-ai/claude-code", api="Messages"),
    Program(title="Codex", script="codex.sh", package="@openai/codex", api="Responses"),
    Program(title="OpenCode", script="opencode.sh", package="opencode-ai", api="Chat Completions"),
    Program(
        title="OpenCode, with its request for a title",
        script="opencode.sh",
        package="opencode-ai",
        api="Chat Completions",
        env={"OPENCODE_CONFIG_CONTENT": '{"agent": {"title": {"disable": false}}}'},
        rows=2,
    ),
    Program(title="Qwen Code", script="qwen_code.sh", package="@qwen-code/qwen-code", api="Chat Completions"),
]


def row_of(program: Program, outcome: Outcome) -> str:
    """Return the row of the table for what was played."""
    stats = stats_of(outcome)
    return f"| {program.title} | {program.version} | {program.api} | {stats.turns} | {stats.rows} |"


def write(rows: list[str]) -> None:
    """Replace the table of the page."""
    before, _, rest = PAGE.read_text("utf-8").partition(HEAD)
    after = rest[rest.index("\n\n") :] if "\n\n" in rest else "\n"
    PAGE.write_text(before + HEAD + "\n".join(rows) + after, encoding="utf-8")
