"""orl-core: the pure part of orl. Import its public names from here, and those of one area from its package.

    config      RunConfig and load_config: one YAML file, refused at load time when wrong
    task        Task: which episode of which environment
    messages    Message, ToolSpec, ToolCall, ToolResult, ParseFailure, Action
    tools       tool formats: parse, render_call, format_tools, system_prompt
    render      messages ⇄ token ids, append-only, certified for a tokenizer
    limits      budgets of a rollout, and the tokens that may train
    trajectory  the record of an episode: Generation, Turn, Trajectory, StopReason, StopDetail
    datum       rows of training data: Datum, to_data
    reward      reduce_rewards, reduce_reward, group_rewards, group_advantages
    errors      the tree of OrlError, and boundary

The package loads none of its parts before a name is asked for. `orl_core.__version__` is the version of the installed
package.

Internal: credentials, names and text, and the modules inside config, render and tools.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orl_core.config import (
        EnvironmentConfig,
        GroupRewardConfig,
        RunConfig,
        TrainerConfig,
        decode_config,
        load_config,
    )
    from orl_core.datum import Datum, to_data
    from orl_core.errors import ConfigError, EngineError, OrlError, RenderError, RunAborted, SessionError, boundary
    from orl_core.limits import Limits, TrainOn
    from orl_core.messages import (
        Action,
        Block,
        FailureKind,
        ImageBlock,
        Message,
        ParseFailure,
        Role,
        Span,
        TextBlock,
        ToolCall,
        ToolResult,
        ToolSpec,
        text_message,
        text_of,
    )
    from orl_core.render import Certificate, Renderer, Tokenizer
    from orl_core.reward import group_advantages, group_rewards, reduce_reward, reduce_rewards
    from orl_core.task import Task, TaskRow, row_of
    from orl_core.tools import TOOL_FORMATS, ToolFormat, format_tools, parse, render_call, system_prompt
    from orl_core.trajectory import (
        FinishReason,
        Generation,
        RolloutSpec,
        StopDetail,
        StopReason,
        Trajectory,
        Turn,
    )

__all__ = [
    "TOOL_FORMATS",
    "Action",
    "Block",
    "Certificate",
    "ConfigError",
    "Datum",
    "EngineError",
    "EnvironmentConfig",
    "FailureKind",
    "FinishReason",
    "Generation",
    "GroupRewardConfig",
    "ImageBlock",
    "Limits",
    "Message",
    "OrlError",
    "ParseFailure",
    "RenderError",
    "Renderer",
    "Role",
    "RolloutSpec",
    "RunAborted",
    "RunConfig",
    "SessionError",
    "Span",
    "StopDetail",
    "StopReason",
    "Task",
    "TaskRow",
    "TextBlock",
    "Tokenizer",
    "ToolCall",
    "ToolFormat",
    "ToolResult",
    "ToolSpec",
    "TrainOn",
    "TrainerConfig",
    "Trajectory",
    "Turn",
    "boundary",
    "decode_config",
    "format_tools",
    "group_advantages",
    "group_rewards",
    "load_config",
    "parse",
    "reduce_reward",
    "reduce_rewards",
    "render_call",
    "row_of",
    "system_prompt",
    "text_message",
    "text_of",
    "to_data",
]

_NAMES = {
    "config": "EnvironmentConfig GroupRewardConfig RunConfig TrainerConfig decode_config load_config",
    "datum": "Datum to_data",
    "errors": "ConfigError EngineError OrlError RenderError RunAborted SessionError boundary",
    "limits": "Limits TrainOn",
    "messages": "Action Block FailureKind ImageBlock Message ParseFailure Role Span TextBlock ToolCall ToolResult "
    "ToolSpec text_message text_of",
    "render": "Certificate Renderer Tokenizer",
    "reward": "group_advantages group_rewards reduce_reward reduce_rewards",
    "task": "Task TaskRow row_of",
    "tools": "TOOL_FORMATS ToolFormat format_tools parse render_call system_prompt",
    "trajectory": "FinishReason Generation RolloutSpec StopDetail StopReason Trajectory Turn",
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:  # help() and completion show the names that are not loaded yet
    return [*globals(), *__all__]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("orl-core")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
