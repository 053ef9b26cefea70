"""The configuration: one YAML file, decoded into a frozen RunConfig that every stage reads and none writes.

The schema is the OpenReward cookbook's `train_config.yaml` with our additions. Bad input is refused here, with file and
`$.path`: unknown keys, wrong types, NaN, impossible bounds, names that are no part of a URL. Configs are built by
decoding only, which checks types. `trainer.flags` pass through verbatim, but for secrets.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta, Struct, field

from orl_core.credentials import refuse_among
from orl_core.errors import ConfigError
from orl_core.names import PathName, is_path_name
from orl_core.nesting import MAX_DEPTH, non_finite, too_deep
from orl_core.tools import ToolFormat
from orl_core.tools.format import check_system_prompt

if TYPE_CHECKING:
    from pathlib import Path

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


class TrainOn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of the sampled ids train: parts of an action, and turns all of whose calls were refused.

    What is switched off stays in the data, shown and sampled, with a loss mask of 0.
    """

    text: bool = True
    calls: bool = True
    reasoning: bool = True
    failed_turns: bool = True

    def __post_init__(self) -> None:
        if not (self.text or self.calls or self.reasoning):
            raise ValueError("nothing would train: leave one of `text`, `calls`, `reasoning` on")

    @property
    def every_part(self) -> bool:
        """Whether all parts of an action train, so that they need not be told apart."""
        return self.text and self.calls and self.reasoning


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

    def public(self) -> dict[str, Any]:
        """The configuration as plain JSON types, every secret's value replaced by null."""
        tree = msgspec.to_builtins(self)
        for holder in (tree, *tree["environments"].values()):
            for secret in holder["secrets"]:
                holder["secrets"][secret] = None
        return tree


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read, override and check the configuration at `path`.

    An override is `dotted.path=value` with the value in YAML: `environments.Org/Env.max_turns=3`.

    Raises:
        ConfigError: the file cannot be read, is not YAML, or breaks the schema; names the file and the `$.path`.
    """
    from pathlib import Path

    from orl_core import configfile

    tree = configfile.read(Path(path))
    for override in overrides:
        configfile.override(tree, override)
    configfile.read_template(tree, str(path))
    return decode_config(tree, str(path))


def decode_config(tree: object, source: str) -> RunConfig:
    """Build a RunConfig from plain JSON types (a YAML tree, or the `orl_config` that travels into a trainer).

    Raises:
        ConfigError: the tree breaks the schema; the message opens with `source`.
    """
    if too_deep(tree):
        raise ConfigError(f"{source}: nested deeper than {MAX_DEPTH} levels - at `$`")
    if where := non_finite(tree, "$"):
        raise ConfigError(f"{source}: numbers must be finite and within 64 bits - at `{where}`")
    try:
        return msgspec.convert(tree, RunConfig)
    except msgspec.ValidationError as exc:
        message = str(exc) if "`$" in str(exc) else f"{exc} - at `$`"
        if _UNNAMED in message:
            message = message.replace(_UNNAMED, _broken_environment(tree))
        raise ConfigError(f"{source}: {message}") from exc


_UNNAMED = "$.environments[...]"  # how msgspec writes the path into a mapping


def _broken_environment(tree: object) -> str:
    """The path of the first environment in `tree` that does not decode; msgspec's own path leaves its name out."""
    environments = cast("dict[str, dict[str, object]]", tree)["environments"]
    for name, environment in environments.items():
        try:
            msgspec.convert(environment, EnvironmentConfig)
        except msgspec.ValidationError:
            return f"$.environments.{name}"
    return "$.environments"
