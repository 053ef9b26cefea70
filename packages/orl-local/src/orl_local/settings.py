"""The settings of a run's updates: its options with every default filled in, once. No torch here.

What cannot be obeyed is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from msgspec import Struct, structs
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_core.text import did_you_mean

from orl_local.algorithm import Algorithm, algorithm_named
from orl_local.options import DEFAULTS, LocalOptions, own_options

TINY = 10_000_000  # parameters
TINY_LR, REAL_LR = 4e-4, 1e-6  # a tiny model needs large steps, which would ruin a real one
LORA_LR = 10  # times: adapters need larger steps than the weights that they change
CAP = 3.0  # of the correction
TOKENS = 8192  # ids of a micro-batch, unless a GPU says how many fit
BETA_OPTIONS = ("adam_beta1", "adam_beta2", "adam_eps")
# Fields of TRL's GRPOConfig, which `trainer.flags` had before, and the options for them.
MOVED: Mapping[str, str] = {
    "beta": "--kl-coef",
    "epsilon": "--clip-low",
    "epsilon_high": "--clip-high",
    "gradient_accumulation_steps": "--updates",
    "gradient_checkpointing": "--checkpointing",
    "activation_checkpointing": "--checkpointing",
    "importance_sampling_level": "--advantage-estimator gspo",
    "learning_rate": "--lr",
    "loss_type": "--advantage-estimator",
    "lr_scheduler_type": "--lr-decay-style",
    "max_grad_norm": "--max-grad-norm",
    "num_iterations": "--updates",
    "optim": "--optimizer",
    "per_device_train_batch_size": "--max-tokens-per-gpu",
    "save_total_limit": "--save-total-limit",
    "steps_per_generation": "--updates",
    "vllm_importance_sampling_clip_max": "--correction-cap",
    "vllm_importance_sampling_correction": "--correction off",
    "vllm_importance_sampling_mode": "--correction",
    "warmup_steps": "--warmup",
}


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that an update depends on, but for weights and rows.

    `steps` are those of the whole run, `updates` those of one step. `turn_tokens` is the constant of a constant mean.
    `tokens` are the ids of a micro-batch with padding, `recompute` says that activations are computed again.
    """

    algorithm: Algorithm
    lr: float
    decay: str
    warmup: int
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    optimizer: str
    steps: int
    updates: int
    max_grad_norm: float
    kl_coef: float
    correction: str
    correction_cap: float
    temperature: float
    turn_tokens: int
    max_logprob_difference: float
    seed: int = 0
    lora_rank: int | None = None
    tokens: int = TOKENS
    recompute: bool = False


def settings_of(config: RunConfig, parameters: int | None, words: Sequence[str] = ()) -> Settings:
    """Return the settings of a run of a model of so many parameters; None of them is a real one.

    `words` are the flags that are left after those of SGLang.

    Raises:
        ConfigError: an option cannot be obeyed; the message names it.
    """
    for word in words:
        _refuse(word)
    trainer, own = config.trainer.with_defaults(DEFAULTS), own_options(config.trainer)
    algorithm = _bounded(algorithm_named(trainer.advantage_estimator or ""), own)
    if (trainer.n_samples or 0) < 2:
        raise ConfigError("`n_samples` is 1, and a rollout is compared with its group: give 2 or more (--n-samples)")
    if config.turn_advantages and algorithm.ratio == "sequence":
        raise ConfigError("`turn_advantages` gives each id its own advantage, and gspo has one ratio. Use grpo")
    if own.correction == "off" and own.correction_cap is not None:
        raise ConfigError("`correction_cap` is set, and `correction` is off. Remove one of them")
    _check_optimizer(config, own)
    rollouts = (trainer.rollout_batch_size or 1) * (trainer.n_samples or 1)
    tiny = parameters is not None and parameters < TINY
    rate = TINY_LR if tiny else REAL_LR * (LORA_LR if own.lora_rank else 1)
    return Settings(
        algorithm=algorithm,
        lr=trainer.lr or rate,
        decay=trainer.lr_decay_style or "constant",
        warmup=own.warmup,
        betas=(trainer.adam_beta1 or 0.0, trainer.adam_beta2 or 0.0),
        eps=trainer.adam_eps or 0.0,
        weight_decay=trainer.weight_decay or 0.0,
        optimizer=own.optimizer,
        steps=trainer.num_rollout or 0,
        updates=own.updates or (1 if rollouts % 2 else 2),
        max_grad_norm=own.max_grad_norm,
        kl_coef=own.kl_coef,
        correction=own.correction,
        correction_cap=own.correction_cap or CAP,
        temperature=trainer.temperature or 1.0,
        turn_tokens=config.rollout.turn_tokens,
        max_logprob_difference=trainer.max_logprob_difference,
        seed=trainer.seed,
        lora_rank=own.lora_rank,
        tokens=trainer.max_tokens_per_gpu or TOKENS,
        recompute=own.checkpointing == "on",
    )


def _bounded(algorithm: Algorithm, own: LocalOptions) -> Algorithm:
    """Return the algorithm with the bounds of the options."""
    if algorithm.cap is not None:
        if own.clip_low is not None:
            raise ConfigError("`clip_low` is set, and cispo bounds a ratio from above only. Remove it")
        return algorithm if own.clip_high is None else structs.replace(algorithm, cap=1 + own.clip_high)
    low = algorithm.low if own.clip_low is None else own.clip_low
    return structs.replace(algorithm, low=low, high=algorithm.high if own.clip_high is None else own.clip_high)


def _check_optimizer(config: RunConfig, own: LocalOptions) -> None:
    """Refuse an optimizer that cannot be made here, or that would ignore an option of Adam."""
    if own.optimizer == "adamw_8bit" and find_spec("bitsandbytes") is None:
        raise ConfigError("`optimizer: adamw_8bit` needs bitsandbytes. Install it: uv pip install bitsandbytes")
    for name in (name for name in BETA_OPTIONS if getattr(config.trainer, name) is not None):
        if own.optimizer == "adafactor":
            raise ConfigError(f"`optimizer: adafactor` does not take `{name}`. Remove one of them")


def _refuse(word: str) -> None:
    name = word.lstrip("-").partition("=")[0].replace("-", "_")
    if option := MOVED.get(name):
        raise ConfigError(f"`{word}` is a flag of TRL. Use {option}, before `--`")
    hint = did_you_mean(name, sorted(MOVED))
    raise ConfigError(f"`{word}`: local takes --sglang-* after `--`, and no other flags{hint}, or use `orl train trl`")
