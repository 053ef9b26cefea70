"""Schema of the configuration: every key with its type, default and description, which are written nowhere else.

It is the OpenReward cookbook's `train_config.yaml` with our additions. docs/configuration.md, configs/schema.json and
the help of the command line are made of it. Types and bounds are checked where a configuration is decoded, which is the
only way to build one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from orl_core.config.trainer import TrainerConfig
from orl_core.errors import ConfigError
from orl_core.limits import Budgets, Limits, Positive, Seconds
from orl_core.names import EnvironmentName, PathName
from orl_core.tools import ToolFormat
from orl_core.tools.format import check_system_prompt

Share = Annotated[float, Meta(ge=0, le=1)]
Url = Annotated[str, Meta(pattern=r"^https?://[^@?#\s]*\Z", title="address (http or https, without login and query)")]
_NAME = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
Function = Annotated[str, Meta(pattern=rf"^{_NAME}:{_NAME}\Z", title="module:function")]
Reduction = Literal["sum", "mean", "max", "min", "last"]
_TEMPLATE = re.compile(r"\{[{%]")  # in every chat template, and in no path of one


class Secret(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Release a secret to named hosts only."""

    value: Annotated[
        str | None, Meta(description="The secret itself; null reads the variable of its name, or of that in capitals.")
    ] = None
    hosts: Annotated[
        tuple[str, ...], Meta(description="Hosts that may receive it; OpenReward knows those of common secrets.")
    ] = ()


Secrets = dict[str, str | Secret | None]


class EnvironmentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure one environment, named Organization/Environment."""

    splits: Annotated[tuple[str, ...], Meta(min_length=1, description="Splits to train on, at least one.")] = ("train",)
    num_samples: Annotated[
        Positive | None, Meta(description="Most tasks taken from each split; null takes all of them.")
    ] = None
    nonterminal_reward: Annotated[
        float | None,
        Meta(description="Reward appended where the environment did not end the episode; null appends none."),
    ] = None
    reward_reduction: Annotated[Reduction, Meta(description="How the rewards of an episode become one number.")] = "sum"
    min_reward: Annotated[float | None, Meta(description="Lower bound of the reduced reward; null sets none.")] = None
    max_reward: Annotated[float | None, Meta(description="Upper bound of the reduced reward; null sets none.")] = None
    max_turns: Annotated[Positive, Meta(description="Turns after which a rollout ends.")] = Limits().max_turns
    secrets: Annotated[
        Secrets, Meta(description="Secrets of this environment, as the top-level `secrets`, which they replace.")
    ] = field(default_factory=dict[str, str | Secret | None])
    variant: Annotated[
        PathName | None,
        Meta(description="Environment to ask the server for; null means the one that the name or the task says."),
    ] = None
    base_url: Annotated[
        Url | None, Meta(description="Address of a server of your own; null means OpenReward, or the playground.")
    ] = None
    send_api_key: Annotated[
        bool, Meta(description="Send OPENREWARD_API_KEY to `base_url` too; off, it goes to OpenReward alone.")
    ] = False
    toolset: Annotated[
        str | None, Meta(description="Toolset to add to the environment's own tools; null adds none.")
    ] = None
    weight: Annotated[
        float,
        Meta(
            gt=0, description="Share of the tasks, relative to the other environments, where their number is limited."
        ),
    ] = 1.0
    eval_splits: Annotated[
        tuple[str, ...], Meta(description="Splits to evaluate on, held out from training; empty means no evaluation.")
    ] = ()
    success_reward: Annotated[float, Meta(description="Reward from which a rollout counts as a success.")] = 1.0
    parallel_calls: Annotated[
        bool, Meta(description="Run the calls of one turn at the same time; off, one after the other.")
    ] = Limits().parallel_calls
    max_concurrency: Annotated[
        Positive | None, Meta(description="Most sessions open at once in one process; null finds the limit as it runs.")
    ] = None
    call_timeout: Annotated[
        Seconds | None, Meta(description="Deadline of one call, in seconds; null means `rollout.call_timeout`.")
    ] = None

    def __post_init__(self) -> None:
        if self.min_reward is not None and self.max_reward is not None and self.min_reward > self.max_reward:
            raise ValueError(f"`min_reward` {self.min_reward} is above `max_reward` {self.max_reward}: swap them")


class RolloutConfig(Budgets, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set budgets, deadlines and records of every rollout. Deadlines nest: call, turn, rollout."""

    rollout_tokens: Annotated[
        Positive | None,
        Meta(description="Tokens that the model may generate in all turns; null means `context_tokens`."),
    ] = None
    max_error_rate: Annotated[
        Share, Meta(description="Share of the latest rollouts that may end in ERROR before the run is aborted.")
    ] = 0.5
    journal: Annotated[str | None, Meta(description="Folder of the journal; null means the run's own folder.")] = None
    upload: Annotated[
        bool | None,
        Meta(
            description="Upload rollouts to OpenReward; null uploads those of its own environments, where a key is set."
        ),
    ] = None

    def __post_init__(self) -> None:
        if not self.call_timeout <= self.turn_timeout <= self.rollout_timeout:
            raise ValueError(
                "deadlines must nest: `call_timeout` <= `turn_timeout` <= `rollout_timeout`, not "
                f"{self.call_timeout}, {self.turn_timeout}, {self.rollout_timeout}"
            )


class EvalConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Evaluate on the environments' `eval_splits`. `orl rollout` samples as this section says."""

    interval: Annotated[
        Positive | None, Meta(description="Steps between evaluations; null evaluates before and after training only.")
    ] = None
    samples: Annotated[Positive, Meta(description="Rollouts of each task.")] = 1
    max_tasks: Annotated[Positive | None, Meta(description="Most tasks to evaluate on; null takes all of them.")] = None
    temperature: Annotated[float, Meta(ge=0, description="Sampling temperature.")] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1, description="Nucleus sampling: the probability mass to sample from.")] = (
        1.0
    )


class GroupRewardConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Use the environment's comparative score of a whole group (`score_group`)."""

    mode: Annotated[
        Literal["off", "only", "blend"],
        Meta(description="`only` replaces the rollouts' rewards by the scores, `blend` adds them with `weight`."),
    ] = "off"
    weight: Annotated[float, Meta(description="Factor of a score in `blend`.")] = 1.0
    timeout: Annotated[
        Seconds,
        Meta(description="Deadline for all scores of a step, in seconds; a later group keeps its own rewards."),
    ] = 300.0


class RunConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Configure a run. Every stage reads this, and none writes it."""

    environments: Annotated[
        dict[EnvironmentName, EnvironmentConfig],
        Meta(min_length=1, description="Environments to play, by name, such as GeneralReasoning/WhoDunIt."),
    ]
    secrets: Annotated[
        Secrets,
        Meta(description="Secrets of all environments, by name: a value, null (read a variable), or value and hosts."),
    ] = field(default_factory=dict[str, str | Secret | None])
    system_prompt_template: Annotated[
        str | None,
        Meta(
            description="System prompt with {tools} in it; {{ and }} are braces. Null: the chat template shows tools."
        ),
    ] = None
    thinking: Annotated[
        bool | Literal["keep", "strip"] | None,
        Meta(
            description="Reasoning: false turns it off, `keep` (or true) leaves that of earlier turns in the context, "
            "`strip` takes it out. Null turns it off where the chat template can."
        ),
    ] = None
    chat_template: Annotated[
        str | None, Meta(description="File with a chat template that replaces the checkpoint's own.")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any], Meta(description="Variables of the chat template, such as {reasoning_effort: low}.")
    ] = field(default_factory=dict[str, Any])
    chat_template_date: Annotated[
        date | None, Meta(description="Date that the chat template shows; null means the day when the run begins.")
    ] = None
    tool_format: Annotated[
        ToolFormat | Literal["auto"], Meta(description="Wire format of calls; auto is the one of the chat template.")
    ] = "auto"
    openreward_run_name: Annotated[str, Meta(description="Name of the run at OpenReward and of its folder.")] = "orl"
    reward: Annotated[
        Function | None,
        Meta(description="Function of a Trajectory that gives its reward, importable where rollouts run."),
    ] = None
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

    def __post_init__(self) -> None:
        if mistakes := "\n".join(self._mistakes()):
            raise ValueError(mistakes)

    def _mistakes(self) -> Iterator[str]:
        for name, environment in self.environments.items():
            if (environment.call_timeout or 0.0) > self.rollout.turn_timeout:
                yield f"`call_timeout` of {name} is above `turn_timeout`, {self.rollout.turn_timeout}: lower it"
        if self.system_prompt_template is not None:
            try:
                check_system_prompt(self.system_prompt_template)
            except ValueError as exc:
                yield str(exc)
        if self.chat_template is not None and not _TEMPLATE.search(self.chat_template):
            yield f"`chat_template` is the path `{self.chat_template}`: only load_config reads the file"

    def environment(self, name: str) -> EnvironmentConfig:
        """Return the settings of the environment `name`.

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.environments:
            known = ", ".join(self.environments)
            raise ConfigError(f"the configuration has no environment `{name}`: name one of {known}")
        return self.environments[name]

    def public(self) -> dict[str, Any]:
        """Return the configuration as plain JSON types, every secret's value replaced by null."""
        tree = msgspec.to_builtins(self)
        for holder in (tree, *tree["environments"].values()):
            for secret in holder["secrets"]:
                holder["secrets"][secret] = None
        return tree
