"""The section `agent`: a function or a program that plays in place of the built-in loop, and what it may ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, field

from orl_core.config.checked import Checked
from orl_core.config.rollout import RolloutConfig
from orl_core.credentials import has_login, refuse_on_command_line, takes_secret
from orl_core.errors import ConfigError
from orl_core.limits import Positive, Seconds

_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
Function = Annotated[str, Meta(pattern=rf"^{_NAME}:{_NAME}\Z", title="module:function")]
LOOPS_OWN = ("max_nudges", "max_invalid", "retry_cut_actions", "workers")  # only the built-in loop obeys them
OF_A_PROGRAM = ("env", "folder", "timeout", "max_output")
MARK = "ORL_EPISODE"  # another value in each episode
GIVEN = (
    *("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    *("ORL_MCP_URL", "ORL_PROMPT", "ORL_MODEL", MARK),
)  # variables that a command gets for each episode


class AgentConfig(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Name the agent that plays, `function` or `command`, and what its requests may ask.

    A command runs for each episode. It plays through the addresses, the key and the prompt in its environment:
    OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, ORL_MCP_URL, ORL_PROMPT and ORL_MODEL.
    ORL_EPISODE marks all that it starts, which ends with the episode. It gets no other variable than those of `env`,
    and the few that programs need, such as PATH and HOME.
    """

    function: Annotated[Function | None, Meta(description="Your function `async def agent(episode)`.")] = None
    command: Annotated[tuple[str, ...], Meta(description="Program and its arguments; no shell.")] = ()
    forced_calls: Annotated[
        Literal["refuse", "sample"],
        Meta(
            description="Requests that demand a call: refuse them, or sample freely and count each unmet demand as "
            "`forced_calls_unmet`."
        ),
    ] = "refuse"
    env: Annotated[
        dict[str, str | None], Meta(description="Variables of the program; null: that of orl's own environment.")
    ] = field(default_factory=dict[str, str | None])
    folder: Annotated[
        str | None, Meta(description="Working folder; null: a new one for each episode, removed at its end.")
    ] = None
    timeout: Annotated[
        Seconds | None, Meta(description="Seconds for the program; null: the `rollout_timeout` of `rollout`.")
    ] = None
    max_output: Annotated[
        Positive, Meta(description="Bytes of its output that are kept for an error, the last ones.")
    ] = 16384

    @property
    def name(self) -> str:
        """Return the function, or the program; "" if another process plays."""
        return self.function or next(iter(self.command), "")


def agent_mistakes(agent: AgentConfig | None, budgets: RolloutConfig) -> Iterator[str]:
    """Yield what is wrong with an agent, or with budgets that it does not obey. No text holds a secret's value."""
    if agent is None:
        return
    for name in LOOPS_OWN:
        if (value := getattr(budgets, name)) != getattr(RolloutConfig(), name):
            yield f"`rollout.{name}` is {value}, and only the built-in loop obeys it. Remove it, or `agent`"
    if agent.function and agent.command:
        yield "`agent` has a `function` and a `command`. Remove one"
    if not agent.command:
        set_ = [name for name in OF_A_PROGRAM if getattr(agent, name) != getattr(AgentConfig(), name)]
        yield from (f"`agent.{name}` is for a program, and there is no `agent.command`. Remove it" for name in set_)
    else:
        yield from _program_mistakes(agent)


def _program_mistakes(agent: AgentConfig) -> Iterator[str]:
    try:
        refuse_on_command_line(agent.command)
    except ConfigError as exc:
        yield f"`agent.command`: {exc}"
    for name, value in agent.env.items():
        if name in GIVEN:
            yield f"`agent.env.{name}` is set for each episode. Remove it"
        elif value is not None and (takes_secret(name) or has_login(value)):
            yield f"`agent.env.{name}` may hold a secret. Write null, and set {name} in orl's environment"
        if not name or "=" in name or "\0" in name + (value or ""):
            yield f"`agent.env` has the variable {name!r}, which no program can get"
