"""Find the format of calls that a system prompt teaches. It knows texts, and no chat template."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orl_core.tools import deepseek

if TYPE_CHECKING:
    from orl_core.tools import ToolFormat

# The words that an example of a call holds. Formats that share a delimiter stand in the order of their other words.
# Bare JSON and bare Python have no delimiter, and several formats share one opening: `tool_format` states those.
_WORDS: tuple[tuple[ToolFormat, tuple[str, ...]], ...] = (
    ("qwen3_coder", ("<tool_call>", "<function=")),
    ("hy3_preview", ("<tool_calls>", "<tool_sep>")),
    ("glm45", ("<tool_call>", "<arg_key>")),
    ("minimax_m3", ("]<]minimax[>[",)),
    ("minimax_m1", ("<tool_calls>", '"name"')),
    ("hermes", ("<tool_call>", '"name"')),
    ("seed_oss", ("<seed:tool_call>",)),
    ("minimax", ("<minimax:tool_call>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("deepseek", (deepseek.CALL,)),
    ("deepseek", (deepseek.DSML,)),
    ("kimi_k2", ("<|tool_call_begin|>",)),
    ("kimi_k3", ("<|open|>call",)),
    ("cohere", ("<|START_ACTION|>",)),
    ("gemma4", ("<|tool_call>",)),
    ("olmo3", ("<function_calls>",)),
    ("hy3", ("<tool_call:opensource>",)),
    ("opened_array", ("<TOOLCALL>",)),
    ("opened_array", ("<|tool_call|>",)),
)


def taught_format(system_prompt_template: str) -> ToolFormat | None:
    """Return the format of the calls that the text shows; None if it shows none that is known by its delimiters."""
    shown = system_prompt_template.replace("{{", "{").replace("}}", "}")
    return next((name for name, words in _WORDS if all(word in shown for word in words)), None)
