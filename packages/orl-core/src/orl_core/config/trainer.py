"""Section `trainer`: options that every trainer obeys, such as `lr` and `save_interval`, and adapters' sections.

An adapter defines the Structs of its sections and decodes them (`section`). `trainer.flags` go to the trainer as they
are, but for secrets. They may be kept apart by trainer, so that one file runs on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, cast

import msgspec
from msgspec import Meta, Struct, field, structs

from orl_core.config.checked import Checked
from orl_core.config.moved import line_for
from orl_core.credentials import credentials_among
from orl_core.errors import ConfigError
from orl_core.limits import NonNegative, Positive

MAX_LOGPROB_DIFFERENCE = 0.1  # in nats; healthy runs stay below 0.004: docs/evidence.md
Decay = Annotated[float, Meta(ge=0, lt=1)]
Flag = str | float | bool | None
Options = TypeVar("Options", bound=Struct)


class TrainerConfig(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set options that every trainer obeys; null leaves the choice to the trainer.

    Options of one trainer have sections of their own, as below. A trainer ignores the sections of others.
    """

    backend: Annotated[
        Annotated[str, Meta(pattern=r"^[A-Za-z][A-Za-z0-9_-]*\Z", title="name of a trainer")] | None,
        Meta(description="Trainer, by the name of its adapter; null: the command line names it."),
    ] = None
    model: Annotated[
        str | None,
        Meta(description="Checkpoint: folder, folder of a run, name on a hub, or a model of the playground."),
    ] = None
    load: Annotated[
        str | None,
        Meta(description="Checkpoint to resume from: its folder, or a run's."),
    ] = None
    allow_changes: Annotated[
        str | None,
        Meta(description="Keys, with commas, that may differ from the run that `load` continues."),
    ] = None
    lr: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Learning rate.")] = None
    lr_decay_style: Annotated[
        Literal["constant", "linear", "cosine"] | None, Meta(description="Schedule of the learning rate.")
    ] = None
    weight_decay: Annotated[Annotated[float, Meta(ge=0)] | None, Meta(description="Weight decay of Adam.")] = None
    adam_beta1: Annotated[Decay | None, Meta(description="Decay rate of Adam's mean of gradients.")] = None
    adam_beta2: Annotated[Decay | None, Meta(description="Decay rate of Adam's mean of squared gradients.")] = None
    adam_eps: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Epsilon of Adam.")] = None
    advantage_estimator: Annotated[
        str | None,
        Meta(description="Advantage estimator: grpo, or another one that the trainer has."),
    ] = None
    n_samples: Annotated[Positive | None, Meta(description="Rollouts of each task, which make a group.")] = None
    rollout_batch_size: Annotated[Positive | None, Meta(description="Tasks of one step.")] = None
    num_rollout: Annotated[Positive | None, Meta(description="Steps of the whole run.")] = None
    temperature: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Sampling temperature.")] = None
    max_tokens_per_gpu: Annotated[
        Positive | None,
        Meta(description="Most tokens in one GPU's micro-batch."),
    ] = None
    save_interval: Annotated[Positive | None, Meta(description="Steps between checkpoints.")] = None
    task_data: Annotated[str | None, Meta(description="File from orl prepare (default: all tasks, unweighted).")] = None
    wandb_project: Annotated[
        str | None, Meta(description="Project at Weights & Biases; reports the run there, offline without a key.")
    ] = None
    wandb_run: Annotated[
        str | None, Meta(description="Run name at Weights & Biases and OpenReward (default: the folder's).")
    ] = None
    wandb_mode: Annotated[
        Literal["online", "offline", "disabled"] | None,
        Meta(description="Mode of Weights & Biases (default: online if WANDB_API_KEY is set or you are logged in)."),
    ] = None
    max_logprob_difference: Annotated[
        float,
        Meta(
            gt=0,
            description="Mean difference between logprobs of training and of sampling that ends the run, as the median "
            "of 8 steps; so do 0.02 and ten times the first 8 steps.",
        ),
    ] = MAX_LOGPROB_DIFFERENCE
    tensorboard: Annotated[
        bool, Meta(description="Write TensorBoard's files, to `tensorboard` in the run's folder.")
    ] = False
    seed: Annotated[
        NonNegative,
        Meta(
            description="Seed of tasks, weights and sampling; SGLang repeats samples if its inference is deterministic."
        ),
    ] = 0
    flags: Annotated[
        dict[str, Flag | dict[str, Flag]],
        Meta(
            description='Options of the trainer itself: {"--kl-loss-coef": 0.01}; true is a switch, null omits it. '
            "Keep those of several trainers apart, by their names: {NAME: {...}}."
        ),
    ] = field(default_factory=dict[str, Flag | dict[str, Flag]])
    sections: Annotated[
        dict[str, dict[str, Any]], Meta(description="The sections of adapters. In a file they are keys of `trainer`.")
    ] = field(default_factory=dict[str, dict[str, Any]])

    def mistakes(self) -> Iterator[str]:
        """Yield credentials among the options, and flags of no trainer."""
        settings = {name: getattr(self, name) for name in self.__struct_fields__}
        yield from credentials_among(settings, self.flags)
        apart = {name: flags for name, flags in self.flags.items() if isinstance(flags, dict)}
        for flags in apart.values():
            yield from credentials_among({}, flags)
        for name, section in self.sections.items():
            yield from credentials_among(section, {})
            yield from filter(None, (line_for(f"$.trainer.{name}.{key}") for key in section))
        if 0 < len(apart) < len(self.flags):
            yield f"`flags` has `{next(iter(apart))}` and options of no trainer: move each into the flags of a trainer"

    @property
    def own_flags(self) -> dict[str, Flag]:
        """The flags of `backend`."""
        flags = self.flags.get(self.backend or "")
        if isinstance(flags, dict):
            return flags
        return {name: value for name, value in self.flags.items() if not isinstance(value, dict)}

    def section(self, name: str, kind: type[Options]) -> Options:
        """Return the section `name` of an adapter, decoded to its Struct.

        Raises:
            ConfigError: it breaks the Struct; names each mistake.
        """
        tree = self.sections.get(name, {})
        try:
            return msgspec.convert(tree, kind)
        except (msgspec.ValidationError, UnicodeError):
            from orl_core.config.mistakes import find_mistakes, listed

            raise ConfigError(listed(find_mistakes(tree, kind, f"$.trainer.{name}"))) from None

    def with_defaults(self, defaults: Mapping[str, Any]) -> TrainerConfig:
        """Return the options with `defaults` for those that are null."""
        return structs.replace(self, **{name: value for name, value in defaults.items() if getattr(self, name) is None})


def placed(tree: Any) -> Any:
    """Return the `tree` of a configuration with the sections of adapters in `trainer.sections`, for decoding."""
    whole = cast("dict[str, Any]", tree if isinstance(tree, dict) else {})
    if not isinstance(whole.get("trainer"), dict):
        return cast("Any", tree)
    section: dict[str, Any] = whole["trainer"]
    known = {field.encode_name for field in structs.fields(TrainerConfig)} - {"sections"}
    sections: dict[str, Any] = {
        name: value for name, value in section.items() if name not in known and isinstance(value, dict)
    }
    rest = {name: value for name, value in section.items() if name not in sections}
    return {**whole, "trainer": {**rest, "sections": sections} if sections else rest}
