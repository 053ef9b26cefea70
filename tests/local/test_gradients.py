"""The learner reproduces the gradients and weights of two steps of the golden cases, which TRL made."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from orl_core.estimators import ESTIMATORS
from orl_local.engine.lora import with_adapters
from orl_local.learner import Learner
from orl_local.settings import Algorithm, Settings
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from tests.kit.gradients import (
    ADAPTERS,
    MAX_NORM,
    MODEL,
    PARTS,
    RANK,
    SAME,
    WIDTH,
    Case,
    apart,
    gradients_of,
    load_cases,
)

CASES = {name: case for name, case in load_cases().items() if case.kl_ratio and case.loss != "bnpo"}
MEANS = {"dapo": "ids", "cispo": "ids", "grpo": "rollouts", "dr_grpo": "constant"}


def settings_of(case: Case) -> Settings:
    low, high = case.clip
    algorithm = Algorithm(
        advantage=ESTIMATORS["grpo"],
        ratio="sequence" if case.sequence else "token",
        low=low,
        high=high,
        cap=1 + high if case.loss == "cispo" else None,
        mean=MEANS[case.loss],  # pyright: ignore[reportArgumentType]
    )
    return Settings(
        algorithm=algorithm,
        lr=case.lr,
        warmup=case.warmup,
        steps=2,
        updates=2,
        max_grad_norm=MAX_NORM,
        kl_coef=case.beta,
        correction=case.correction or "off",
        temperature=case.temperature,
        turn_tokens=WIDTH,
        tokens=256,
    )


def model_of(case: Case) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(MODEL, dtype="float32")
    if case.lora:
        model = with_adapters(model, RANK)
        set_peft_model_state_dict(model, load_file(ADAPTERS))
    return model


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_two_steps_equal_those_of_trl(case: Case):
    model, found = model_of(case), []
    learner = Learner(model, settings_of(case), lambda: None, deepcopy(model))
    learner.optimizer.register_step_pre_hook(lambda *_: found.append(gradients_of(model)))
    for parts in case.steps:
        learner.train_on(parts)
    for of, gradients, norm in zip(PARTS[:2], found, case.norms, strict=False):
        clip = max(1.0, norm / MAX_NORM)
        assert apart({name: one * clip for name, one in gradients.items()}, case.tensors(of)) < SAME
    weights = get_peft_model_state_dict(model) if case.lora else model.state_dict()
    golden = case.tensors("weights")
    assert apart({name: weights[name].detach() for name in golden}, golden) < SAME
