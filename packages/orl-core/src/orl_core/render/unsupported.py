"""Why no parser reads the calls of a chat template: its format, by the family if it is known."""

from __future__ import annotations

from orl_core.tools import TOOL_FORMATS

FORMATS = (
    ("<start_function_call>", "FunctionGemma"),
    ("Action:\n```json", "Command R and R+"),
    ("<|tool_call:begin|>", "Solar Open"),
    ("<|tool_call:name|>", "Solar Open"),
    ("<|function_call|>", "GigaChat 3.1"),
    ("function call<|role_sep|>", "GigaChat 3"),
    ("<|action_start|>", "InternLM 2"),
    ("<atem:function_calls>", "Muse Glimmer"),
    ("<|tools_prefix|>", "Apertus"),
    ("<function name=", "MiniCPM 5"),
    ("<function_call>", "Granite 20B function calling"),
    ("<function=", "Functionary 3.1, or the XML calls of Qwen3-Coder"),
    ("[look(", "a Python list of calls, as Llama 3.2, Llama 4 and ToolACE write it"),
    ('{"name"', "a JSON object without marks, as Llama 3 and Phi-4-mini write it"),
)


def unsupported(rendered: str, why_no_calls: str, near: str = "") -> str:
    """Return why a call that the template renders in this way is refused.

    `why_no_calls` as in `Plans`; `near` says which parser comes near, and where it fails.
    """
    if not rendered.strip():
        return (
            f"the chat template is not made for tools: it prints no tool call that can be followed ({why_no_calls}). "
            "Take a template that does, or teach a format with `system_prompt_template`; `tool_format` names it"
        )
    family = next((name for mark, name in FORMATS if mark in rendered), "")
    found = f"the format of {family}" if family else "a format that orl does not know by name"
    return (
        f"the chat template renders tool calls in {found}, which none of the parsers ({', '.join(TOOL_FORMATS)}) reads "
        f"back with its types: {rendered!r}. {near}{near and '. '}Teach another format with "
        "`system_prompt_template`; `tool_format` names it"
    )
