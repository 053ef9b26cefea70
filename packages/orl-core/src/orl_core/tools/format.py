"""Tools as a model reads them: for a chat template, and for the `{tools}` of a `system_prompt_template`.

Keys are in a fixed order, those of a schema in the environment's order: the same tools always give the same text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from orl_core.errors import expect_each
from orl_core.messages import ToolSpec

if TYPE_CHECKING:
    from collections.abc import Sequence


def for_chat_template(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the tools as chat templates expect them: one `{"type": "function", "function": {…}}` each."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in expect_each(ToolSpec, "tools", tools)
    ]


def for_system_prompt(tools: Sequence[ToolSpec]) -> str:
    """Return the tools as text, one JSON object a line, in the form of the OpenReward cookbook."""
    return "\n".join(
        json.dumps(
            {"name": tool.name, "arguments_schema": tool.parameters, "description": tool.description},
            ensure_ascii=False,
        )
        for tool in expect_each(ToolSpec, "tools", tools)
    )
