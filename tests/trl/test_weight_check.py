"""Sick weights stop a run within one step, healthy ones never do. The stand-in serves what it was sent, or less."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from orl_core.errors import EngineError
from orl_trl.engine.lora import base_of, lora_config
from orl_trl.engine.served_engine import ServedEngine, Server
from orl_trl.engine.sglang_control import SglangControl
from orl_trl.engine.weight_check import METRIC, fingerprints
from orl_trl.engine.weights import WeightSender
from orl_trl.training.training_run import quiet_trl, train
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel, Qwen3ForCausalLM

from tests.trl.fakes import Player, by_row, make_run, summary
from tests.trl.stand_in import Loaded, Tamper, Weights, served
from tests.trl.test_served_engine import opening

LAYER = "model.layers.{}.mlp.down_proj.weight"
SWAPPED = {LAYER.format(0): LAYER.format(1), LAYER.format(1): LAYER.format(0)}


@pytest.fixture
def trained(model: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
    return copy.deepcopy(model)


def adapted(model: Qwen3ForCausalLM) -> Any:
    with quiet_trl():
        return get_peft_model(copy.deepcopy(model), cast("LoraConfig", lora_config(4)))


def update(model: Any, size: float = 0.01) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(size * torch.randn_like(weight))


@contextmanager
def syncing(
    model: PreTrainedModel, server: Loaded, control: SglangControl, folder: Path, *, exact: bool = True
) -> Generator[Callable[[], ServedEngine]]:
    """Yield what sends the weights as they are, checked."""
    server_of_run = Server(url=server.url, context_tokens=4096, exact=exact)
    engine = ServedEngine(model, server_of_run, WeightSender(control, folder))
    versions = iter(range(10_000))

    def sync() -> ServedEngine:
        with engine.batch(str(next(versions))):
            return engine

    yield sync


def frozen(server: Loaded) -> Tamper:
    first = dict(server.state)
    return lambda _weights: dict(first)


def stale(server: Loaded) -> Tamper:
    first = server.state[LAYER.format(1)]
    return lambda weights: {**weights, LAYER.format(1): first}


def swapped(server: Loaded) -> Tamper:
    return lambda weights: {SWAPPED.get(name, name): weight for name, weight in weights.items()}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("sick", [frozen, stale, swapped])
def test_sick_weights_stop_the_next_sync(
    trained: Qwen3ForCausalLM, tmp_path: Path, sick: Callable[[Loaded], Tamper], exact: bool
):
    with served() as (server, control), syncing(trained, server, control, tmp_path, exact=exact) as sync:
        sync()
        update(trained)
        assert sync().metrics[METRIC] > 0
        server.tamper = sick(server)
        if sick is not swapped:  # places are changed without a change of the trainer's: see the logprobs below
            update(trained)
        if sick is stale and not exact:  # an engine that quantises may keep a tensor
            sync()
            return
        with pytest.raises(EngineError, match="weights"):
            sync()


@pytest.mark.parametrize("sick", ["adapter", "base"])
def test_adapters_that_do_not_arrive_stop_the_next_sync(model: Qwen3ForCausalLM, tmp_path: Path, sick: str):
    policy = adapted(model)
    with served() as (server, control), syncing(base_of(policy), server, control, tmp_path) as sync:
        sync()
        base = dict(server.state)
        if sick == "base":  # an engine that serves the base model again, after steps that arrived
            update(policy)
            assert sync().metrics[METRIC] > 0
        update(policy)
        server.tamper = lambda _weights: dict(base)
        with pytest.raises(EngineError, match="weights"):
            sync()


@pytest.mark.parametrize("kind", ["all weights", "lora"])
def test_healthy_run_is_never_stopped(model: Qwen3ForCausalLM, tmp_path: Path, kind: str):
    """200 syncs of an optimizer at two learning rates, every twentieth without signal; the embeddings are tied."""
    policy: Any = adapted(model) if kind == "lora" else copy.deepcopy(model)
    parameters = [weight for weight in policy.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(parameters, weight_decay=0.0)
    with served() as (server, control), syncing(base_of(policy), server, control, tmp_path) as sync:
        counts: list[float] = []
        for step in range(200):
            for group in optimizer.param_groups:
                group["lr"] = (1e-6, 4e-5)[step // 100]
            if step % 20:
                loss = policy(input_ids=torch.randint(5, 80, (1, 8)), labels=torch.randint(5, 80, (1, 8))).loss
                loss.backward()
                optimizer.step()
            optimizer.zero_grad()
            counts += [sync().metrics[METRIC]] if step else [float(len(sync().metrics))]
    assert [counts[step] for step in range(20, 200, 20)] == [0.0] * 9
    assert max(counts[:100]) > 0
    assert min(count for step, count in enumerate(counts) if step > 100 and step % 20) > 0


def base_weights(weights: Weights) -> Tamper:
    return lambda _weights: dict(weights)


@pytest.mark.parametrize("sick", ["swap", "base", "adapter"])
def test_logprobs_stop_what_checksums_do_not_show(checkpoint: Path, tmp_path: Path, model: Qwen3ForCausalLM, sick: str):
    """An engine without checksums that computes with other weights stops the run in its first step."""
    run = make_run(tmp_path / "run", checkpoint, max_logprob_difference=0.01)
    other = copy.deepcopy(model)
    update(other, 0.2 if sick == "base" else 0.05)
    with served() as (server, control):
        server.shows = False
        wrong = {name: weight.clone() for name, weight in other.state_dict().items() if name != "lm_head.weight"}
        server.tamper = swapped(server) if sick == "swap" else base_weights(wrong)
        with pytest.raises(EngineError, match="logprobs"):
            train(run, Player(run.config, by_row).open, opening(server, control, tmp_path))
    assert "logprobs" in summary(run)["error"]
    assert not (run.folder / "metrics.jsonl").exists()  # nothing trained


def test_one_changed_bit_changes_its_fingerprint(model: Qwen3ForCausalLM):
    weights = {name: weight.to(torch.bfloat16).clone() for name, weight in model.state_dict().items()}
    before = fingerprints(weights.items())
    assert before == fingerprints(weights.items())
    for name, weight in weights.items():
        if name == "lm_head.weight":
            continue
        bits = weight.view(torch.int16).view(-1)
        bits[-1] ^= 1
        changed = fingerprints(weights.items())
        assert {each for each in before if before[each] != changed[each]} == {name}
        bits[-1] ^= 1
