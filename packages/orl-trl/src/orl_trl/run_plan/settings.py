"""From a Run to TRL's GRPOConfig: defaults that work on this machine, the shared options, then flags as they are.

It mirrors none of TRL's options: names and types are checked by the parser that transformers derives from GRPOConfig.
Options that orl must own (what a step is, where files go) are refused with the name of ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from orl_core.config import RunConfig, TrainerConfig
from orl_core.errors import ConfigError, boundary
from orl_core.text import did_you_mean
from orl_rollout.run_folder.contract import Run
from orl_rollout.run_folder.tracking import tracked_by
from transformers import HfArgumentParser, Trainer
from transformers.training_args import OptimizerNames
from trl.trainer.grpo_config import GRPOConfig

from orl_trl.engine.engine_plan import split_options
from orl_trl.engine.local_model import TINY
from orl_trl.options import DEFAULTS, own_options
from orl_trl.run_plan.owned_flags import NAMES, OWNED

if TYPE_CHECKING:
    from transformers.hf_argparser import DataClassType

KEPT = 2  # checkpoints that stay
# Estimators, and GRPOConfig's fields for each; GSPO's are those of its paper (arXiv 2507.18071) in TRL's paper index.
ESTIMATORS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {},
    "gspo": {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4},
}
# Ways to weigh the loss by the ratio of both policies; TRL's default comes first.
MODES = ("sequence_mask", "sequence_truncate", "token_mask", "token_truncate")
TINY_LR, REAL_LR = 4e-4, 1e-6  # a tiny model needs large steps, which would ruin a real one
LORA_LR = 10  # times: adapters need larger steps than the weights that they change
MEANS_OVER_IDS = ("dapo", "cispo")  # values of `loss_type` that count each trained id of a batch once, whatever its row
OF_SINGLE_IDS = (*MEANS_OVER_IDS, "grpo", "bnpo", "dr_grpo")  # where each id has its own ratio and advantage
# The new name in transformers 5.2x, where the old one still warns.
CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in NAMES else "gradient_checkpointing"


def check_settings(config: RunConfig) -> str:
    """Return the model's name, or the checkpoint to continue, once settings that TRL cannot obey are ruled out.

    Raises:
        ConfigError: there is no model, or a setting that changes what is trained.
    """
    model = config.trainer.load or config.trainer.model
    if not model:
        raise ConfigError("trainer.model is not set. Give --model: a checkpoint's folder, or a name on a model hub")
    return model


def grpo_config(run: Run, *, parameters: int) -> GRPOConfig:
    """Make TRL's configuration for `run` and a model of so many parameters.

    A step of ours plays `rollout_batch_size` x `n_samples` rollouts and makes two updates of them (one if their
    number is odd); `--per-device-train-batch-size` splits an update into passes, to save memory.

    Raises:
        ConfigError: a flag is unknown, owned by orl or of the wrong type, the estimator is not TRL's, or batch sizes do
            not fit together.
    """
    config, own = run.config.trainer.with_defaults(DEFAULTS), own_options(run.config.trainer)
    estimator = _estimator(config.advantage_estimator or "")
    defaults = {
        **_defaults(parameters, own.lora_rank),
        **estimator,
        **_shared(config, own.optimizer),
        "output_dir": str(run.folder / "trainer"),
    }
    defaults["max_completion_length"] = run.config.rollout.turn_tokens
    defaults["report_to"] = ["wandb"] if tracked_by(config).mode else "none"
    _, flags = split_options(config.own_flags, run.extra)
    merged = {**defaults, **_flags(flags)}
    if merged["temperature"] <= 0:
        raise ConfigError(f"`temperature` is {merged['temperature']}, and the loss divides by it: it must be above 0")
    if merged["num_generations"] < 2:
        raise ConfigError("`n_samples` is 1, and a rollout is compared with its group: give 2 or more (--n-samples)")
    if own.lora_rank and not merged["use_cpu"] and not merged["bf16"]:
        raise ConfigError("`lora_rank` keeps the weights below the adapters in bf16. Leave `bf16` out")
    _check_correction(merged)
    if run.config.turn_advantages:
        _check_turn_advantages(merged)
    if run.config.several_rows:
        _check_several_rows(merged, run.config.several_rows)
    merged.update(_batches(config, merged))
    with boundary(ConfigError, "the settings for TRL"):
        settings = GRPOConfig(**merged)
    settings._n_gpu = min(settings.n_gpu, 1)  # transformers takes every GPU that it sees, and TRL refuses several
    _check_optimizer(run.config.trainer, own.optimizer, settings)
    return settings


def _check_optimizer(config: TrainerConfig, optimizer: str | None, settings: GRPOConfig) -> None:
    """Refuse an optimizer that cannot be made here, or that would ignore an option of Adam.

    Raises:
        ConfigError: a package is missing, or the option means nothing to the optimizer.
    """
    with boundary(ConfigError, f"--optimizer {optimizer}"):
        _, taken = Trainer.get_optimizer_cls_and_kwargs(settings)
    options = {"adam_beta1": "betas", "adam_beta2": "betas", "adam_eps": "eps"}
    for name in (name for name in options if getattr(config, name) is not None and options[name] not in taken):
        raise ConfigError(f"--optimizer {optimizer} does not take `{name}`. Remove one of them")


def _check_correction(settings: Mapping[str, Any]) -> None:
    """Refuse fields of GRPOConfig that TRL would refuse in the middle of a run, or only with vLLM.

    Raises:
        ConfigError: the mode does not exist, or the loss does not take it.
    """
    mode = settings.get("vllm_importance_sampling_mode", MODES[0])
    if mode not in MODES:
        raise ConfigError(f"`vllm_importance_sampling_mode` is {mode}. Set one of: {', '.join(MODES)}")
    corrected = settings.get("vllm_importance_sampling_correction", True)
    if corrected and settings.get("loss_type") == "vespo" and mode.startswith("sequence"):
        raise ConfigError(
            f"`loss_type: vespo` does not take `vllm_importance_sampling_mode: {mode}`. Set it to token_truncate"
        )


def _check_several_rows(settings: Mapping[str, Any], setting: str) -> None:
    """Refuse settings under which a rollout of several rows would count more than once.

    Raises:
        ConfigError: there is one; the message names it.
    """
    refused = {
        "loss_type": settings.get("loss_type") not in MEANS_OVER_IDS,
        "importance_sampling_level": settings.get("importance_sampling_level", "token") != "token",
        "beta": bool(settings.get("beta")),
        "mask_truncated_completions": bool(settings.get("mask_truncated_completions")),
        "off_policy_mask_threshold": settings.get("off_policy_mask_threshold") is not None,
    }
    for name in (name for name, wrong in refused.items() if wrong):
        raise ConfigError(
            f"{setting} makes several rows of a rollout, and with `{name}: {settings[name]}` TRL would not "
            f"count them as one: remove {setting}, or leave `{name}` out"
        )


def _check_turn_advantages(settings: Mapping[str, Any]) -> None:
    """Refuse settings under which an id would not train on the advantage of its own turn.

    Raises:
        ConfigError: there is one; the message names it.
    """
    refused = {
        "loss_type": settings.get("loss_type") not in OF_SINGLE_IDS,
        "importance_sampling_level": settings.get("importance_sampling_level", "token") != "token",
        "scale_rewards": settings.get("scale_rewards") == "batch",
        "off_policy_mask_threshold": settings.get("off_policy_mask_threshold") is not None,
    }
    for name in (name for name, wrong in refused.items() if wrong):
        raise ConfigError(
            f"`turn_advantages` gives each id its own advantage, and `{name}: {settings[name]}` mixes those of a row "
            f"or of a batch: remove one of them"
        )


def _flags(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of flags by GRPOConfig's fields."""
    parser = _Parser([cast("DataClassType", GRPOConfig)], allow_abbrev=False, add_help=False)
    named = vars(parser.parse_args(words))
    for name in sorted(named.keys() & OWNED.keys()):
        raise ConfigError(f"the flag `{name}` is refused: {OWNED[name]}. Leave it out")
    if "gradient_checkpointing" in named:
        named[CHECKPOINTING] = named.pop("gradient_checkpointing")
    return named


def _defaults(parameters: int, lora_rank: int | None) -> dict[str, Any]:
    """Return our defaults. TRL's own need a recent GPU."""
    gpu = torch.cuda.is_available()
    rate = TINY_LR if parameters < TINY else REAL_LR
    return {
        "use_cpu": not gpu,
        "bf16": gpu,
        CHECKPOINTING: gpu,
        "dataloader_pin_memory": gpu,
        "learning_rate": rate * LORA_LR if lora_rank and parameters >= TINY else rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 3,
        "max_grad_norm": 1.0,
        "beta": 0.0,
        "loss_type": "dapo",
        "scale_rewards": "group",
        "logging_steps": 1,
        "save_strategy": "steps",
        "save_total_limit": KEPT,
        "disable_tqdm": True,
    }


def _estimator(name: str) -> Mapping[str, Any]:
    """Return the fields of an estimator.

    Raises:
        ConfigError: TRL lacks it.
    """
    if name not in ESTIMATORS:
        raise ConfigError(
            f"--advantage-estimator {name}: TRL has {' and '.join(ESTIMATORS)}; change it, or train with slime or miles"
        )
    return ESTIMATORS[name]


def _shared(config: TrainerConfig, optimizer: str | None) -> dict[str, Any]:
    """Return the options that all trainers share, if they are set."""
    named = {
        "optim": optimizer,
        "learning_rate": config.lr,
        "num_generations": config.n_samples,
        "temperature": config.temperature,
        "seed": config.seed,
        "run_name": config.wandb_run,
        "lr_scheduler_type": config.lr_decay_style,
        "weight_decay": config.weight_decay,
        "adam_beta1": config.adam_beta1,
        "adam_beta2": config.adam_beta2,
        "adam_epsilon": config.adam_eps,
    }
    return {name: value for name, value in named.items() if value is not None}


def _batches(config: TrainerConfig, merged: Mapping[str, Any]) -> dict[str, int | str]:
    """Work out the passes and updates of a step, and the updates of the run."""
    rows = (config.rollout_batch_size or 0) * merged["num_generations"]
    passes = merged.get("steps_per_generation")
    width = merged.get("per_device_train_batch_size") or rows // (passes or (1 if rows % 2 else 2))
    passes = passes or rows // width
    if width * passes != rows:
        raise ConfigError(
            f"a step has {rows} rollouts, which {passes} passes of {width} rows do not make: "
            "change `rollout_batch_size`, `n_samples`, or the flag `per_device_train_batch_size`"
        )
    update = merged.get("gradient_accumulation_steps") or (passes // 2 if passes % 2 == 0 else passes)
    if passes % update:
        raise ConfigError(f"`gradient_accumulation_steps` {update} does not divide the {passes} passes of a step")
    updates = passes * merged.get("num_iterations", 1) // update
    return {
        "per_device_train_batch_size": width,
        "steps_per_generation": passes,
        "gradient_accumulation_steps": update,
        "max_steps": (config.num_rollout or 0) * updates,
        "save_steps": (config.save_interval or 0) * updates,
    }


def optimizer_of(settings: GRPOConfig) -> str:
    """Return the optimizer by transformers' name."""
    return str(OptimizerNames(settings.optim).value)


def updates_per_step(settings: GRPOConfig) -> int:
    """Return the optimizer's updates in one step of ours."""
    return (settings.steps_per_generation or 1) * settings.num_iterations // settings.gradient_accumulation_steps


class _Parser(HfArgumentParser):
    """Transformers' parser of GRPOConfig: it returns flags that are set, and raises instead of ending the process."""

    def add_argument(self, *names: str, **kwargs: Any) -> argparse.Action:
        """Add an option without default and help, which nobody reads."""
        return super().add_argument(*names, **{**kwargs, "default": argparse.SUPPRESS, "required": False, "help": None})

    def parse_args(self, args: Sequence[str], namespace: None = None) -> argparse.Namespace:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse `args`.

        Raises:
            ConfigError: one is unknown, with the nearest name there is, or its value is of the wrong type.
        """
        known, unknown = self.parse_known_args(args, namespace)
        if unknown:
            name = unknown[0].lstrip("-").partition("=")[0].replace("-", "_")
            raise ConfigError(f"TRL's GRPOConfig has no `{name}`{did_you_mean(name, sorted(NAMES))}")
        return known

    def error(self, message: str) -> NoReturn:
        """Raise what argparse has to say."""
        raise ConfigError(f"the trainer's flags: {message}")
