"""The configuration: one YAML file, decoded into a frozen RunConfig that every stage reads and none writes.

The schema is the OpenReward cookbook's `train_config.yaml` with our additions. Bad input is refused here, with file and
`$.path`: unknown keys, wrong types, NaN, impossible bounds, names that are no part of a URL. Configs are built by
decoding only, which checks types. `trainer.flags` pass through verbatim, but for secrets.
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from orl_core.credentials import refuse_among
from orl_core.errors import ConfigError
from orl_core.limits import TrainOn
from orl_core.names import PathName, is_path_name
from orl_core.tools import ToolFormat
from orl_core.tools.format import check_system_prompt

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Reduction = Literal["sum", "mean", "max", "min", "last"]
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_TEMPLATE = re.compile(r"\{[{%]")  # in every chat template, and in no path of one
Backend = Literal["slime", "miles", "trl"]


class Secret(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A secret that is released to `hosts` only. `value` null is read from the process environment."""

    value: str | None = None
    hosts: tuple[str, ...] = ()


Secrets = dict[str, str | Secret | None]


class EnvironmentConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One environment. Rewards are plain numbers, timeouts seconds; see the commented files in configs/."""

    splits: tuple[str, ...] = ("train",)
    num_samples: Positive | None = None
    nonterminal_reward: float | None = None
    reward_reduction: Reduction = "sum"
    min_reward: float | None = None
    max_reward: float | None = None
    max_turns: Positive = 20
    secrets: Secrets = field(default_factory=dict[str, str | Secret | None])
    variant: PathName | None = None
    base_url: Annotated[str, Meta(pattern="^https?://")] | None = None
    send_api_key: bool = False
    toolset: str | None = None
    weight: Annotated[float, Meta(gt=0)] = 1.0
    eval_splits: tuple[str, ...] = ()
    success_reward: float = 1.0
    parallel_calls: bool = False
    max_concurrency: Positive | None = None
    call_timeout: Seconds | None = None

    def __post_init__(self) -> None:
        if self.min_reward is not None and self.max_reward is not None and self.min_reward > self.max_reward:
            raise ValueError(f"`min_reward` {self.min_reward} is above `max_reward` {self.max_reward}")
        if not self.splits:
            raise ValueError("`splits` is empty: name at least one split, such as [train]")
        if {"@", "?", "#"} & set(self.base_url or ""):
            raise ValueError("`base_url` holds a login or a query, and is written down: keep them in `secrets`")


class RolloutConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Budgets (token ids), deadlines (seconds) and records of every rollout. Deadlines nest: call, turn, rollout.

    `rollout_tokens` null means: as many as the context holds. `journal` is a folder, null means: the run's; `upload`
    null means: where there is a key and the environment is the platform's own. `train_on` lowers the loss mask.
    """

    turn_tokens: Positive = 4096
    rollout_tokens: Positive | None = None
    context_tokens: Positive = 32768
    tool_result_tokens: Positive = 4096
    call_timeout: Seconds = 60.0
    turn_timeout: Seconds = 300.0
    rollout_timeout: Seconds = 900.0
    train_timeouts: bool = False
    train_on: TrainOn = field(default_factory=TrainOn)
    max_nudges: NonNegative = 1
    max_invalid: Positive = 3
    max_error_rate: Share = 0.5
    journal: str | None = None
    upload: bool | None = None

    def __post_init__(self) -> None:
        if not self.call_timeout <= self.turn_timeout <= self.rollout_timeout:
            raise ValueError(
                "deadlines must nest: `call_timeout` <= `turn_timeout` <= `rollout_timeout`, not "
                f"{self.call_timeout}, {self.turn_timeout}, {self.rollout_timeout}"
            )


class EvalConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Evaluation on the environments' `eval_splits`: every `interval` steps (null: before and after training only)."""

    interval: Positive | None = None
    samples: Positive = 1
    max_tasks: Positive | None = None
    temperature: Annotated[float, Meta(ge=0)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0


class GroupRewardConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The environment's comparative score of a whole group (`score_group`): off, alone, or added with `weight`.

    `timeout` is the deadline, in seconds, for scoring all groups of a step; a group past it keeps its own rewards.
    """

    mode: Literal["off", "only", "blend"] = "off"
    weight: float = 1.0
    timeout: Seconds = 300.0


class TrainerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which trainer, and the options that all trainers share; null leaves the choice to the trainer's adapter.

    The names are those of the command line (`--rollout-batch-size`), which overrides them. `flags` go to the trainer
    as they are: `{"--use-kl-loss": true, "--kl-loss-coef": 0.01}`.
    """

    backend: Backend = "trl"
    model: str | None = None
    lr: Annotated[float, Meta(gt=0)] | None = None
    n_samples: Positive | None = None
    rollout_batch_size: Positive | None = None
    num_rollout: Positive | None = None
    max_response_len: Positive | None = None
    max_context_len: Positive | None = None
    max_tokens_per_gpu: Positive | None = None
    temperature: Annotated[float, Meta(gt=0)] | None = None
    asynchronous: bool = field(default=False, name="async")
    num_gpus: Positive | None = None
    actor_gpus: Positive | None = None
    rollout_gpus: Positive | None = None
    actor_nodes: Positive | None = None
    tp: Positive | None = None
    train_backend: Literal["megatron", "fsdp"] | None = None
    advantage_estimator: str | None = None
    load: str | None = None
    save: str | None = None
    save_interval: Positive | None = None
    megatron_ckpt: str | None = None
    model_args: str | None = None
    task_data: str | None = None
    wandb_project: str | None = None
    wandb_run: str | None = None
    wandb_mode: Literal["online", "offline", "disabled"] | None = None
    seed: NonNegative = 0
    flags: dict[str, str | float | bool | None] = field(default_factory=dict[str, str | float | bool | None])

    def __post_init__(self) -> None:
        refuse_among({name: getattr(self, name) for name in self.__struct_fields__}, self.flags)


class RunConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that a run is made of. `secrets` values never leave the process; see `public`.

    `thinking` is false, `keep` (or true: reasoning stays in the context as it was sampled) or `strip` (the engine is
    shown earlier turns without it). Null turns reasoning off where the chat template has a switch, and accepts what the
    template does where it has none. `reward` is `module:function` of a Trajectory, importable where rollouts run.

    `chat_template` replaces the checkpoint's own: the path of a file, whose text `load_config` puts in its place.
    `chat_template_kwargs` are variables for the template. `chat_template_date` is the date that it shows; null is the
    day when the run begins. `tool_format` is the wire format of calls; `auto` finds it in the template.
    """

    environments: dict[str, EnvironmentConfig]
    secrets: Secrets = field(default_factory=dict[str, str | Secret | None])
    system_prompt_template: str | None = None
    thinking: bool | Literal["keep", "strip"] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict[str, Any])
    chat_template_date: date | None = None
    tool_format: ToolFormat | Literal["auto"] = "auto"
    openreward_run_name: str = "orl"
    reward: str | None = None
    group_reward: GroupRewardConfig = field(default_factory=GroupRewardConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    def __post_init__(self) -> None:
        if not self.environments:
            raise ValueError("`environments` is empty: name at least one, such as GeneralReasoning/WhoDunIt")
        for name, environment in self.environments.items():
            if "/" not in name or not all(map(is_path_name, name.split("/"))):
                raise ValueError(f"environment `{name}` is not of the form Organization/Environment, in A-Za-z0-9_.-")
            if (environment.call_timeout or 0.0) > self.rollout.turn_timeout:
                raise ValueError(f"`call_timeout` of {name} is above `turn_timeout`, {self.rollout.turn_timeout}")
        if self.system_prompt_template is not None:
            check_system_prompt(self.system_prompt_template)
        if self.chat_template is not None and not _TEMPLATE.search(self.chat_template):
            raise ValueError(f"`chat_template` is the path `{self.chat_template}`: only load_config reads the file")
        if self.reward is not None and not _FUNCTION.fullmatch(self.reward):
            raise ValueError(f"`reward` is `{self.reward}`, not of the form module:function")

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
        """The configuration as plain JSON types, every secret's value replaced by null."""
        tree = msgspec.to_builtins(self)
        for holder in (tree, *tree["environments"].values()):
            for secret in holder["secrets"]:
                holder["secrets"][secret] = None
        return tree
