"""The settings of a run's updates, filled in once: default learning rates, caps, algorithm. No torch here.

What cannot be obeyed is refused here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Literal

from msgspec import Struct, structs
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_core.estimators import ESTIMATORS, OPTION, Estimator

from orl_local.options import DEFAULTS, LocalOptions, own_options

TINY = 10_000_000  # parameters
TINY_LR, REAL_LR = 4e-4, 1e-6  # a tiny model needs large steps, which would ruin a real one
LORA_LR = 10  # times: adapters need larger steps than the weights that they change
CAP = 3.0  # of the correction
TOKENS = 8192  # ids of a micro-batch, unless a GPU says how many fit


class Algorithm(Struct, frozen=True, kw_only=True):
    """One way to make a loss of advantages.

    `ratio` is that of each id, or of the whole rollout (the geometric mean over its ids). It counts between 1 - `low`
    and 1 + `high`; a `cap` (CISPO) weighs the logprob by the ratio up to it. The loss is a mean over the `ids` of the
    step, over its `rollouts` (each a mean over its ids), or a sum divided by rollouts times the budget of a turn
    (`constant`). docs/how-it-works.md has the names of TRL and slime.
    """

    advantage: Estimator
    ratio: Literal["token", "sequence"] = "token"
    low: float = 0.2
    high: float = 0.2
    cap: float | None = None
    mean: Literal["ids", "rollouts", "constant"] = "ids"


GROUP = ESTIMATORS["grpo"]
ALGORITHMS: Mapping[str, Algorithm] = {
    "grpo": Algorithm(advantage=GROUP),
    "gspo": Algorithm(advantage=GROUP, ratio="sequence", low=3e-4, high=4e-4, mean="rollouts"),  # arXiv 2507.18071
    "cispo": Algorithm(advantage=GROUP, cap=5.0),  # arXiv 2506.13585; the cap is that of arXiv 2510.13786
    "dr_grpo": Algorithm(advantage=Estimator(name="dr_grpo", center=True, turns=True), mean="constant"),
}


class Settings(Struct, frozen=True, kw_only=True):
    """Everything that an update depends on, but for weights and rows: options by their names, and more.

    `steps` are those of the whole run, `updates` those of one step. `turn_tokens` is the constant of a constant mean.
    `tokens` are the ids of a micro-batch with padding, `recompute` says that activations are computed again.
    """

    steps: int
    lr: float
    algorithm: Algorithm = ALGORITHMS["grpo"]
    lr_decay_style: str = "constant"
    warmup: int = 0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.99
    adam_eps: float = 1e-8
    weight_decay: float = 0.0
    optimizer: str = "adamw"
    updates: int = 1
    max_grad_norm: float = 1.0
    kl_coef: float = 0.0
    correction: str = "off"
    correction_cap: float = CAP
    temperature: float = 1.0
    turn_tokens: int = 1
    max_logprob_difference: float = math.inf
    seed: int = 0
    lora_rank: int | None = None
    tokens: int = TOKENS
    recompute: bool = False


def settings_of(config: RunConfig, parameters: int | None, words: Sequence[str] = ()) -> Settings:
    """Return the settings of a run of a model of so many parameters; None of them is a real one.

    `words` are the flags that are left after those of the engine.

    Raises:
        ConfigError: an option cannot be obeyed; the message names it.
    """
    if words:
        raise ConfigError(
            f"`{words[0]}`: local takes --sglang-* and --vllm-* after `--`, and no other flags. "
            "`orl train local --help` lists its options, and `orl train trl` takes flags of TRL"
        )
    trainer, own = config.trainer.with_defaults(DEFAULTS), own_options(config.trainer)
    if (name := trainer.advantage_estimator or "") not in ALGORITHMS:
        raise ConfigError(f"{OPTION} {name}: local has {', '.join(ALGORITHMS)}. Use one, or train with slime or miles")
    algorithm = ALGORITHMS[name]
    _check(config, algorithm, own)
    rollouts = (trainer.rollout_batch_size or 1) * (trainer.n_samples or 1)
    tiny = parameters is not None and parameters < TINY
    options = {**structs.asdict(trainer), **structs.asdict(own)}
    chosen: dict[str, Any] = {
        **{name: options[name] for name in Settings.__struct_fields__ if options.get(name) is not None},
        "algorithm": _bounded(algorithm, own),
        "steps": trainer.num_rollout,
        "lr": trainer.lr or (TINY_LR if tiny else REAL_LR * (LORA_LR if own.lora_rank else 1)),
        "updates": own.updates or (1 if rollouts % 2 else 2),
        "turn_tokens": config.rollout.turn_tokens,
        "tokens": trainer.max_tokens_per_gpu or TOKENS,
        "recompute": own.checkpointing == "on",
    }
    return Settings(**chosen)


def _bounded(algorithm: Algorithm, own: LocalOptions) -> Algorithm:
    """Return the algorithm with the bounds of the options."""
    changes = {"low": own.clip_low, "high": own.clip_high}
    if algorithm.cap is not None:
        changes = {"cap": None if own.clip_high is None else 1 + own.clip_high}
    return structs.replace(algorithm, **{name: bound for name, bound in changes.items() if bound is not None})


def _check(config: RunConfig, algorithm: Algorithm, own: LocalOptions) -> None:
    """Refuse options that cannot be obeyed together, or here."""
    if config.turn_advantages and algorithm.ratio == "sequence":
        raise ConfigError("`turn_advantages` gives each id its own advantage, and gspo has one ratio. Use grpo")
    if own.clip_low is not None and algorithm.cap is not None:
        raise ConfigError("`clip_low` is set, and cispo bounds a ratio from above only. Remove it")
    if own.asynchronous and own.correction == "off":
        raise ConfigError("`async` trains on rollouts of older weights, and `correction` is off. Remove one of them")
    if own.correction_cap is not None and own.correction == "off":
        raise ConfigError("`correction_cap` is set, and `correction` is off. Remove one of them")
    if own.optimizer == "adamw_8bit" and find_spec("bitsandbytes") is None:
        raise ConfigError("`optimizer: adamw_8bit` needs bitsandbytes. Install it: uv pip install bitsandbytes")
    for name in ("adam_beta1", "adam_beta2", "adam_eps"):
        if own.optimizer == "adafactor" and getattr(config.trainer, name) is not None:
            raise ConfigError(f"`optimizer: adafactor` does not take `{name}`. Remove one of them")
