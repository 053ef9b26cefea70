"""Show tools to a model as text: in the form that the chat templates of a tool format print, or in a system prompt.

The templates of the checkpoints are the source of each form. A model that has a chat template with tools needs none of
this: its template prints them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from orl_core.messages import ToolCall
from orl_core.tools import ToolFormat, tool_format
from orl_core.tools.declarations import gemma4, typescript
from orl_core.tools.format import check_system_prompt, for_chat_template, for_system_prompt
from orl_core.tools.write import render_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from orl_core.messages import ToolSpec

    _Form = Callable[[list[dict[str, Any]]], str]

_EXAMPLE = ToolCall(name="tool_name", arguments={"argument_name": "value"})


def format_tools(tools: Sequence[ToolSpec], format: str = "hermes") -> str:  # noqa: A002
    """Return the list of tools as the chat templates of this tool format print it.

    `format` is the name of a tool format, or of a family of models, as for `parse`.

    Raises:
        RenderError: the format is unknown.
    """
    return _FORMS[tool_format(format)](for_chat_template(tools))


def system_prompt(tools: Sequence[ToolSpec], format: str = "hermes", template: str | None = None) -> str:  # noqa: A002
    """Return a system prompt that shows the tools and how to call one, for a model whose chat template shows none.

    `template` is a text with `{tools}`, as the setting `system_prompt_template`: the tools are filled in as one JSON
    object a line. None is a short text with `format_tools` and one call in the format.

    Raises:
        RenderError: as `format_tools`.
        ValueError: the template does not hold `{tools}` alone.
    """
    if template is not None:
        check_system_prompt(template)
        return template.format(tools=for_system_prompt(tools))
    shown, example = format_tools(tools, format), render_call(_EXAMPLE, format)
    return (
        f"You can use these tools:\n\n{shown}\n\nTo call a tool, write its name and arguments like this:\n\n{example}"
    )


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _functions(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [spec["function"] for spec in specs]


def _lines(before: str, after: str, *, bare: bool = False, around: tuple[str, str] = ("", "")) -> _Form:
    """Return the form of one JSON object a line; `bare` leaves out the wrapper of type `function`."""

    def show(specs: list[dict[str, Any]]) -> str:
        lines = (f"{around[0]}{_json(spec)}{around[1]}\n" for spec in (_functions(specs) if bare else specs))
        return f"{before}{''.join(lines)}{after}"

    return show


def _array(before: str, after: str, *, bare: bool = False, indent: int | None = None) -> _Form:
    """Return the form of one JSON array."""
    return lambda specs: f"{before}{_json(_functions(specs) if bare else specs, indent)}{after}"


def _paragraphs(specs: list[dict[str, Any]]) -> str:
    return "\n\n".join(_json(spec, indent=4) for spec in specs)


def _kimi_k3(specs: list[dict[str, Any]]) -> str:
    return json.dumps(specs, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


_TOOLS = _lines("<tools>\n", "</tools>")
_TAGGED = _lines("<tools>\n", "</tools>", bare=True, around=("<tool>", "</tool>"))
_FORMS: Mapping[ToolFormat, _Form] = {
    **dict.fromkeys(("hermes", "qwen3_coder", "glm45", "minimax_m1", "hy3", "hy3_preview"), _TOOLS),
    **dict.fromkeys(("minimax", "minimax_m3"), _TAGGED),
    **dict.fromkeys(("llama3", "json_array"), _paragraphs),
    "mistral": _array("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    "deepseek": _lines("<functions>\n", "</functions>", bare=True),
    "kimi_k2": _array("", ""),
    "kimi_k3": _kimi_k3,
    "pythonic": _array("<|tool_list_start|>", "<|tool_list_end|>"),
    "lfm2_5": _array("", ""),
    "cohere": _array("```json\n", "\n```", bare=True),
    "olmo3": _array("<functions>", "</functions>", bare=True),
    "seed_oss": _array("Tool List:\n", ""),
    "gpt_oss": lambda specs: typescript(_functions(specs)),
    "gemma4": lambda specs: gemma4(_functions(specs)),
    "opened_array": _array("<AVAILABLE_TOOLS>", "</AVAILABLE_TOOLS>", bare=True),
}
