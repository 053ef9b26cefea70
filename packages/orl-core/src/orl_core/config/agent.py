"""The section `agent` where it is a command: a program that plays in place of the built-in loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, field

from orl_core.config.checked import Checked
from orl_core.credentials import has_login, refuse_on_command_line, takes_secret
from orl_core.errors import ConfigError
from orl_core.limits import Budgets, Positive, Seconds

LOOPS_OWN = ("max_nudges", "max_invalid", "retry_cut_actions")  # budgets that only the built-in loop obeys
MARK = "ORL_EPISODE"  # another value in each episode
GIVEN = (
    *("OPENAI_BASE_URL", "OPENAI_API_KEY", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY"),
    *("ORL_MCP_URL", "ORL_PROMPT", "ORL_MODEL", MARK),
)  # variables that a command gets for each episode


class AgentCommand(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run a program for each episode. It plays through the addresses, the key and the prompt in its environment.

    These are OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY, ORL_MCP_URL, ORL_PROMPT and
    ORL_MODEL. ORL_EPISODE marks all that it starts, which ends with the episode. It gets no other variable than those
    of `env`, and the few that programs need, such as PATH and HOME.
    """

    command: Annotated[tuple[str, ...], Meta(min_length=1, description="Program and its arguments; no shell.")]
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


def agent_mistakes(agent: str | AgentCommand | None, budgets: Budgets) -> Iterator[str]:
    """Yield what is wrong with an agent, or with budgets that it does not obey. No text holds a secret's value."""
    if agent is None:
        return
    for name in LOOPS_OWN:
        if (value := getattr(budgets, name)) != getattr(Budgets(), name):
            yield f"`rollout.{name}` is {value}, and only the built-in loop obeys it. Remove it, or `agent`"
    if isinstance(agent, str):
        return
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
