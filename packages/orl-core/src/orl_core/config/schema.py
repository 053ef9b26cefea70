"""Define the keys of the configuration: environments, `eval` and its interval, rewards, templates, secrets.

It is the OpenReward cookbook's `train_config.yaml` with our additions. Type, default and description of a key are
written nowhere else: docs/configuration.md, configs/schema.json and the help of the command line are made of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from orl_core.config.agent import AgentConfig, Function, agent_mistakes
from orl_core.config.checked import Checked
from orl_core.config.rollout import RolloutConfig
from orl_core.config.trainer import TrainerConfig
from orl_core.credentials import has_login, takes_secret
from orl_core.errors import ConfigError
from orl_core.limits import CONTEXT_TOKENS, Budgets, Limits, Positive, Seconds
from orl_core.names import EnvironmentName, PathName, ToolFormat
from orl_core.task import PLAIN
from orl_core.text import check_system_prompt, is_template

# Checked in `mistakes`: msgspec 0.22 crashes when it frees the union of a list and of a text with a pattern.
_URL = r"^https?://[^@?#\s]*\Z"
_ADDRESS = "address (http or https, without login and query)"
Url = Annotated[str, Meta(title=_ADDRESS, extra_json_schema={"pattern": _URL})]
Urls = Annotated[tuple[Url, ...], Meta(min_length=1, title="list of such addresses")]
Reduction = Literal["sum", "mean", "max", "min", "last"]
RewardMode = Literal["replace", "add", "scale"]


class Secret(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Release a secret to named hosts only."""

    value: Annotated[
        str | None, Meta(description="The secret itself; null reads the variable of its name, or of that in capitals.")
    ] = None
    hosts: Annotated[tuple[str, ...], Meta(description="Hosts that may receive it; empty: OpenReward's list.")] = ()


Secrets = dict[str, str | Secret | None]


class EnvironmentConfig(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure one environment, named Organization/Environment."""

    splits: Annotated[tuple[str, ...], Meta(min_length=1, description="Splits to train on, at least one.")] = ("train",)
    num_samples: Annotated[Positive | None, Meta(description="Most tasks of each split to train on; null: all.")] = None
    nonterminal_reward: Annotated[
        float | None, Meta(description="Reward to append if the environment did not end the episode; null: none.")
    ] = None
    reward_reduction: Annotated[Reduction, Meta(description="How the rewards of an episode become one number.")] = "sum"
    min_reward: Annotated[float | None, Meta(description="Lower bound of the reduced reward; null sets none.")] = None
    max_reward: Annotated[float | None, Meta(description="Upper bound of the reduced reward; null sets none.")] = None
    max_turns: Annotated[Positive, Meta(description="Turns after which a rollout ends.")] = Limits().max_turns
    secrets: Annotated[
        Secrets,
        Meta(
            description="Secrets of this environment, as the top-level `secrets`, which they replace; an empty text "
            "takes one away."
        ),
    ] = field(default_factory=dict[str, str | Secret | None])
    env_overrides: Annotated[
        dict[str, str | None],
        Meta(description="Variables of the environment's container; null: the secret of that name, of `secrets`."),
    ] = field(default_factory=dict[str, str | None])
    variant: Annotated[PathName | None, Meta(description="Environment to request; null: that of task or name.")] = None
    base_url: Annotated[
        Url | Urls | None, Meta(description="Address of your server, or of several; null: OpenReward or playground.")
    ] = None
    version: Annotated[
        str | None, Meta(description="Build that its server must state when a run starts, or its beginning; null: any.")
    ] = None
    send_api_key: Annotated[bool, Meta(description="Send OPENREWARD_API_KEY to `base_url` too.")] = False
    toolset: Annotated[str | None, Meta(description="Toolset to add to the environment's tools; null: none.")] = None
    weight: Annotated[float, Meta(gt=0, description="Relative share of the tasks if their number is limited.")] = 1.0
    eval_splits: Annotated[tuple[str, ...], Meta(description="Splits to evaluate on; empty: no evaluation.")] = ()
    success_reward: Annotated[
        float, Meta(description="Reward from which a rollout counts as a success, whether or not its episode ended.")
    ] = 1.0
    parallel_calls: Annotated[bool, Meta(description="Run the calls of a turn concurrently.")] = Limits().parallel_calls
    max_concurrency: Annotated[Positive | None, Meta(description="Most sessions of a process; null: adaptive.")] = None
    call_timeout: Annotated[Seconds | None, Meta(description="Seconds for a call; null: as `rollout` says.")] = None
    replay: Annotated[
        bool, Meta(description="Play a rollout again whose connection broke; false: its world outlives the session.")
    ] = True

    def mistakes(self) -> Iterator[str]:
        """Yield what is wrong with the order of the bounds, and with the addresses."""
        low, high = self.min_reward, self.max_reward
        if low is not None and high is not None and low > high:
            yield f"`min_reward` {low} is above `max_reward` {high}. Swap them"
        if not all(re.search(_URL, address) for address in self.addresses):
            yield f"`base_url`: expected {_ADDRESS}"

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of its own servers. Without one, OpenReward or the playground serves it."""
        urls = (self.base_url,) if isinstance(self.base_url, str) else self.base_url or ()
        return tuple(dict.fromkeys(url.rstrip("/") for url in urls))


class EvalConfig(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Evaluate on the environments' `eval_splits`. `orl rollout` samples as this section says."""

    interval: Annotated[Positive | None, Meta(description="Steps between evaluations; null: at both ends only.")] = None
    samples: Annotated[Positive, Meta(description="Rollouts of each task.")] = 1
    max_tasks: Annotated[Positive | None, Meta(description="Most tasks to evaluate on; null: all.")] = None
    temperature: Annotated[float, Meta(ge=0, description="Sampling temperature.")] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1, description="Probability mass of nucleus sampling.")] = 1.0
    allow_overlap: Annotated[
        bool, Meta(description="Accept held-out tasks that are also trained on, and say so on the pages of the run.")
    ] = False


class GroupRewardConfig(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Use the environment's comparative score of a whole group (`score_group`)."""

    mode: Annotated[
        Literal["off", "only", "blend"],
        Meta(description="`only` replaces rewards by the scores, `blend` adds the scores times `weight`."),
    ] = "off"
    weight: Annotated[float, Meta(description="Factor of a score in `blend`.")] = 1.0
    timeout: Annotated[Seconds, Meta(description="Seconds for all scores of a step; late ones do not count.")] = 300.0


class RunConfig(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure a run. Every stage reads this, and none writes it."""

    environments: Annotated[
        dict[EnvironmentName, EnvironmentConfig],
        Meta(description="Environments to play, such as GeneralReasoning/WhoDunIt. Empty: plain rows alone."),
    ]
    secrets: Annotated[
        Secrets,
        Meta(
            description="Secrets of all environments by name: a value, null (a variable), or value and hosts. One "
            "without a value is left out with a warning, or refused if OpenReward says that it is needed."
        ),
    ] = field(default_factory=dict[str, str | Secret | None])
    system_prompt_template: Annotated[
        str | None,
        Meta(
            description="System prompt with {tools} in it: a JSON object a line, with the schema under "
            "`arguments_schema`. {{ and }} are braces. Null: the chat template lists tools."
        ),
    ] = None
    thinking: Annotated[
        bool | Literal["keep", "strip"] | None,
        Meta(
            description="Reasoning: false turns it off, `keep` (or true) leaves earlier turns' in the context, `strip` "
            "removes it. Null turns it off if the chat template can."
        ),
    ] = None
    chat_template: Annotated[str | None, Meta(description="File with a chat template; null: the checkpoint's.")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any], Meta(description="Variables of the chat template, such as {reasoning_effort: low}.")
    ] = field(default_factory=dict[str, Any])
    stop_tokens: Annotated[
        tuple[str, ...], Meta(description="Added tokens that end an action, with those that the checkpoint names.")
    ] = ()
    chat_template_date: Annotated[date | None, Meta(description="Date in the chat template; null: first day.")] = None
    tool_format: Annotated[
        ToolFormat | Literal["auto"],
        Meta(description="Format of calls; auto: that of the example in `system_prompt_template`, or the model's own."),
    ] = "auto"
    openreward_run_name: Annotated[str, Meta(description="Name of the run; a launch adds its time.")] = "orl"
    reward: Annotated[
        Function | None,
        Meta(
            description="Your function of a Trajectory, installed or in the working folder. A parameter `environment` "
            "gets the environment's settings."
        ),
    ] = None
    reward_mode: Annotated[
        RewardMode,
        Meta(description="Your function's value replaces the environment's reward, is added to it, or scales it."),
    ] = "replace"
    agent: Annotated[
        Function | AgentConfig | None,
        Meta(
            description="Agent that plays: your function `async def agent(episode)`, or a section. Null: the built-in "
            "loop. Needs orl-gateway."
        ),
    ] = None
    turn_advantages: Annotated[
        bool,
        Meta(description="Train each call on its return-to-go, not on the rollout's reward, if the trainer can."),
    ] = False
    group_reward: Annotated[GroupRewardConfig, Meta(description="The environment's comparative score of a group.")] = (
        field(default_factory=GroupRewardConfig)
    )
    rollout: Annotated[RolloutConfig, Meta(description="Budgets, deadlines and records of rollouts.")] = field(
        default_factory=RolloutConfig
    )
    eval: Annotated[EvalConfig, Meta(description="Evaluation.")] = field(default_factory=EvalConfig)
    trainer: Annotated[TrainerConfig, Meta(description="The trainer and its options.")] = field(
        default_factory=TrainerConfig
    )

    def mistakes(self) -> Iterator[str]:
        """Yield what is wrong between sections."""
        if not self.environments and self.trainer.task_data is None:
            yield "`environments` is empty. Name an environment, or a file of plain rows as `trainer.task_data`"
        for name, environment in self.environments.items():
            if (environment.call_timeout or 0.0) > self.rollout.turn_timeout:
                yield f"`call_timeout` of {name} is above `turn_timeout`, {self.rollout.turn_timeout}. Lower it"
            for variable, value in environment.env_overrides.items():
                if value is None and variable not in {**self.secrets, **environment.secrets}:
                    yield f"`env_overrides.{variable}` of {name} is null and no secret. Add it to `secrets`"
                if value is not None and (takes_secret(variable) or has_login(value)):
                    yield f"`env_overrides.{variable}` of {name} may hold a secret. Write null, and add it to `secrets`"
        if self.system_prompt_template is not None:
            try:
                check_system_prompt(self.system_prompt_template)
            except ValueError as exc:
                yield str(exc)
        yield from self._worker_mistakes()
        yield from self._reward_mistakes()
        yield from agent_mistakes(self.agent_config, self.rollout)
        if self.chat_template is not None and not is_template(self.chat_template):
            yield f"`chat_template` is the path `{self.chat_template}`: only load_config reads the file"

    def _worker_mistakes(self) -> Iterator[str]:
        limits = {f"`max_concurrency` of {name}": one.max_concurrency for name, one in self.environments.items()}
        for limit, most in {**limits, "`reward_concurrency`": self.rollout.reward_concurrency}.items():
            if self.rollout.workers > (most or self.rollout.workers):
                yield f"`rollout.workers` is {self.rollout.workers}, and {limit} {most}, which they share. Lower it"

    def _reward_mistakes(self) -> Iterator[str]:
        if self.reward is None and self.reward_mode != "replace":
            yield f"`reward_mode` is {self.reward_mode}, and there is no `reward`. Name a function, or remove the mode"
        if not self.turn_advantages:
            return
        if self.agent is not None:
            yield "`turn_advantages` needs turns in one line, and an agent may branch. Remove it, or `agent`"
        if any(environment.reward_reduction != "sum" for environment in self.environments.values()):
            yield "`turn_advantages` needs `reward_reduction: sum` in every environment"
        if self.reward is not None and self.reward_mode != "add":
            yield f"`turn_advantages` needs `reward_mode: add`, and it is {self.reward_mode}"
        if self.group_reward.mode == "only":
            yield "`turn_advantages` needs turn rewards, and `group_reward.mode: only` replaces them. Use `blend`"

    @property
    def agent_config(self) -> AgentConfig | None:
        """Return the section `agent`, also if it is the name of a function alone."""
        return AgentConfig(function=self.agent) if isinstance(self.agent, str) else self.agent

    @property
    def several_rows(self) -> str:
        """Return the setting by which a rollout may make several rows of data; "" if each makes one."""
        if self.agent is not None:
            return "`agent`"
        return "`thinking: strip`" if self.thinking == "strip" else ""

    @property
    def context_tokens(self) -> int:
        """Return the most ids of prompt and response together, in training, evaluation and `orl rollout`."""
        return self.rollout.context_tokens or CONTEXT_TOKENS

    def limits(self, env_name: str, *, context_tokens: int | None = None) -> Limits:
        """Return the limits of a rollout in `env_name`. `context_tokens` is the trainer's own limit, if it has one."""
        environment = self.environment(env_name)
        context = context_tokens or self.context_tokens
        budgets = {name: getattr(self.rollout, name) for name in Budgets.__struct_fields__}
        budgets["call_timeout"] = environment.call_timeout or self.rollout.call_timeout
        return Limits(
            **budgets,
            max_turns=environment.max_turns,
            context_tokens=context,
            rollout_tokens=self.rollout.rollout_tokens or context,
            parallel_calls=environment.parallel_calls,
            strip_reasoning=self.thinking == "strip",
        )

    def environment(self, name: str) -> EnvironmentConfig:
        """Return the settings of the environment `name`; a plain row has one turn.

        Raises:
            ConfigError: no environment has that name.
        """
        if name == PLAIN:
            return EnvironmentConfig(max_turns=1)
        if name not in self.environments:
            known = ", ".join(self.environments) or "none"
            raise ConfigError(f"the configuration has no environment `{name}`. It has {known}")
        return self.environments[name]

    def public(self) -> dict[str, Any]:
        """Return the configuration as plain JSON types, every secret's value replaced by null."""
        tree = msgspec.to_builtins(self)
        for holder in (tree, *tree["environments"].values()):
            for name, secret in holder["secrets"].items():
                holder["secrets"][name] = _without_value(secret)
        tree["trainer"] |= tree["trainer"].pop("sections")
        return tree


def _without_value(secret: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    """Return a secret without its value. An empty value stays: it takes a secret away."""
    if isinstance(secret, dict):
        return {**secret, "value": _without_value(secret["value"])}
    return secret if secret == "" else None


def editor_schema(sections: Mapping[str, type[Struct]]) -> str:
    """Return the schema as JSON text, with the `sections` of adapters in `trainer`. It refuses less than orl does.

    Its patterns are JavaScript's, which has no `\\Z`.
    """
    kinds = {"": RunConfig, **sections}
    references, components = msgspec.json.schema_components(kinds.values(), ref_template="#/$defs/{name}")
    refer = dict(zip(kinds, references, strict=True))
    trainer = components["TrainerConfig"]
    del trainer["properties"]["sections"]
    trainer["properties"] |= {name: refer[name] for name in sections}
    trainer["additionalProperties"] = {"type": "object"}  # a section of another adapter
    for section in components.values():
        section["description"] = " ".join(section["description"].split())
    return json.dumps({**refer[""], "$defs": components}, indent=2, ensure_ascii=False).replace(r"\\Z", "$") + "\n"
