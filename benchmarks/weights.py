"""The check of weights on a GPU: 200 healthy syncs of a published model, then five kinds of sick weights.

    SGLANG_OPTIONS="--attention-backend triton" python -m benchmarks.weights MODEL --output FOLDER

MODEL is the folder of a checkpoint with a chat template. Real steps of AdamW on short rows go before each sync, half of
them with a learning rate of 1e-6 and half with 4e-5; every twentieth has no step. Then what is sent is not what the
trainer hashed. Each row of the output is one line of JSON; FOLDER gets them too.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from orl_core.config import decode_config
from orl_core.config.trainer import MAX_LOGPROB_DIFFERENCE
from orl_core.errors import EngineError
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.contract import Run
from orl_trl.engine.local_model import load_model, on_device
from orl_trl.engine.lora import base_of, lora_config
from orl_trl.engine.open_engine import started
from orl_trl.engine.served_engine import ServedEngine
from orl_trl.engine.sglang_process import Launch
from orl_trl.engine.weights import WeightSender
from orl_trl.training.importance import check_difference
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, PreTrainedModel

RATES = (1e-6, 4e-5)
ROWS, ROW_IDS, ACTION_IDS = 8, 24, 48
RANK, ADAPTER_RATE, ADAPTER_STEPS = 16, 1e-3, 10
SWAPPED = (".layers.3.", ".layers.20.")
WORDS = "the a cat dog sees finds big red house tree and then it was not there when we came back home again today"
ASKED = (
    *("Name three rivers.", "What is 12 times 7?", "Write a line about rain.", "Why is the sky blue?"),
    *("Tell me a story about a fox.", "List four colours.", "How do bees find flowers?", "Give advice to a student."),
)
Say = Callable[..., None]


class Tampered:
    """Sends the weights of `ghost`, if there is one, in place of those that the trainer hashed."""

    def __init__(self, inner: WeightSender) -> None:
        self._inner = inner
        self.ghost: PreTrainedModel | None = None

    def send(self, model: PreTrainedModel, version: str) -> None:
        self._inner.send(self.ghost or model, version)


class Bench:
    """An engine with its model, and what goes wrong on the way between them."""

    def __init__(self, engine: ServedEngine, url: str, model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> None:
        self.engine, self.url, self.model, self.texts = engine, url, model, texts
        self.sync = Tampered(engine._sender)  # pyright: ignore[reportPrivateUsage]
        vars(engine)["_sender"] = self.sync
        self.draw = random.Random(0)
        self.version = 0

    def send(self, engine: ServedEngine | None = None) -> float:
        """Sync and check. Return the seconds."""
        began = time.monotonic()
        self.version += 1
        with (engine or self.engine).batch(str(self.version)):
            return time.monotonic() - began

    def update(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Take a step on rows of random words."""
        rows = [
            [token for _ in range(ROW_IDS) for token in self.draw.choice(self.texts)][:ROW_IDS] for _ in range(ROWS)
        ]
        ids = torch.tensor(rows, device=self.model.device)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def compare(self, model: Any, prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
        """Sample from the engine, and return what TRL would compare: logprobs of training and of sampling."""
        with ThreadPoolExecutor(len(prompts)) as pool:
            sampled = list(pool.map(lambda ids: _sampled(self.url, ids), prompts))
        old: list[torch.Tensor] = []
        with torch.no_grad():
            for prompt, answer in zip(prompts, sampled, strict=True):
                ids = torch.tensor([[*prompt, *(token for _, token, *_ in answer)]], device=self.model.device)
                scores = torch.log_softmax(model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float(), dim=-1)
                old.append(scores.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu())
        new = torch.tensor([logprob for answer in sampled for logprob, *_ in answer])
        ones = torch.ones_like(new)
        batch = {"old_per_token_logps": torch.cat(old), "sampling_per_token_logps": new}
        return {**batch, "completion_mask": ones, "tool_mask": ones}


def _sampled(url: str, ids: Sequence[int]) -> list[Any]:
    params = {"max_new_tokens": ACTION_IDS, "temperature": 1.0}
    body = json.dumps({"input_ids": list(ids), "sampling_params": params, "return_logprob": True}).encode()
    request = urllib.request.Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["meta_info"]["output_token_logprobs"]


def _difference(batch: dict[str, torch.Tensor]) -> float:
    return float((batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).abs().mean())


def healthy(bench: Bench, prompts: Sequence[Sequence[int]], syncs: int, say: Say) -> int:
    """Sync after real steps. Return how often a check stopped this healthy run."""
    seconds: list[float] = []
    differences: list[float] = []
    stops = 0
    optimizer = torch.optim.AdamW(bench.model.parameters(), lr=RATES[0], weight_decay=0.0)
    for number in range(syncs):
        if number == syncs // 2:
            optimizer = torch.optim.AdamW(bench.model.parameters(), lr=RATES[1], weight_decay=0.0)
        if number % 20 != 10:
            bench.update(bench.model, optimizer)
        try:
            seconds.append(bench.send())
            if number % 5 == 0:
                batch = bench.compare(bench.model, prompts)
                differences.append(_difference(batch))
                check_difference(batch, MAX_LOGPROB_DIFFERENCE)
        except EngineError as fault:
            stops += 1
            say(sync=number, stop=str(fault))
    say(
        **{"syncs": syncs, "false stops": stops, "first seconds": seconds[0], "median seconds": median(seconds)},
        **{"least difference": min(differences), "greatest difference": max(differences)},
    )
    return stops


def sick(bench: Bench, first: PreTrainedModel, prompts: Sequence[Sequence[int]], say: Say) -> list[str]:
    """Send wrong weights, with checksums and without. Return the names of those that nothing stopped in one step.

    `first` is the model as it was before all training.
    """
    optimizer = torch.optim.AdamW(bench.model.parameters(), lr=RATES[1], weight_decay=0.0)
    passed: list[str] = []
    for checksums in (True, False):
        for name in ("frozen", "stale", "swapped", "base")[0 if checksums else 2 :]:
            bench.send()
            bench.update(bench.model, optimizer)
            bench.send()
            before = copy.deepcopy(bench.model)
            bench.update(bench.model, optimizer)
            bench.sync.ghost = _ghost(name, bench.model, before, first)
            passed += _stopped(bench, bench.engine, bench.model, prompts, name, say, checksums=checksums)
    adapted = cast("LoraConfig", lora_config(RANK))
    policy: Any = get_peft_model(copy.deepcopy(bench.model), adapted)
    trained = [weight for weight in policy.parameters() if weight.requires_grad]
    adapters = torch.optim.AdamW(trained, lr=ADAPTER_RATE)
    served = bench.engine
    sender = cast("WeightSender", bench.sync)
    engine = ServedEngine(base_of(policy), served._server, sender, served._process)  # pyright: ignore[reportPrivateUsage]
    plain = copy.deepcopy(bench.model)
    bench.send(engine)
    for checksums in (True, False):
        for _ in range(ADAPTER_STEPS):
            bench.update(policy, adapters)
        bench.send(engine)
        bench.update(policy, adapters)
        bench.sync.ghost = plain
        passed += _stopped(bench, engine, policy, prompts, "adapters left out", say, checksums=checksums)
    return passed


def _ghost(name: str, model: PreTrainedModel, before: PreTrainedModel, first: PreTrainedModel) -> PreTrainedModel:
    """Return a model with the weights that reach the engine."""
    if name in ("frozen", "base"):
        return before if name == "frozen" else first
    ghost = copy.deepcopy(model)
    weights = ghost.state_dict()
    if name == "stale":
        stale = next(name for name in weights if name.endswith("down_proj.weight"))
        weights[stale].copy_(before.state_dict()[stale])
        return ghost
    for here in [name for name in weights if SWAPPED[0] in name]:
        other = weights[here.replace(*SWAPPED)]
        kept = weights[here].clone()
        weights[here].copy_(other)
        other.copy_(kept)
    return ghost


def _stopped(
    bench: Bench,
    engine: ServedEngine,
    model: Any,
    prompts: Sequence[Sequence[int]],
    name: str,
    say: Say,
    *,
    checksums: bool,
) -> list[str]:
    """Send once. Return `name` if no check stopped it."""
    control = engine._control  # pyright: ignore[reportPrivateUsage]
    if not checksums:
        control.checksums = lambda: {}
    fault, difference = "", None
    try:
        bench.send(engine)
        batch = bench.compare(model, prompts)
        difference = _difference(batch)
        check_difference(batch, MAX_LOGPROB_DIFFERENCE)
    except EngineError as stop:
        fault = str(stop)
    vars(control).pop("checksums", None)
    bench.sync.ghost = None
    engine._check.restarted()  # pyright: ignore[reportPrivateUsage]
    say(sick=name, checksums=checksums, difference=difference, stopped=fault)
    return [] if fault else [f"{name}, {'with' if checksums else 'without'} checksums"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--output", type=Path, default=Path("weights"))
    parser.add_argument("--syncs", type=int, default=200)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    model = load_model(options.model)
    tokenizer: Any = AutoTokenizer.from_pretrained(options.model, trust_remote_code=False)
    chats = [[{"role": "user", "content": text}] for text in ASKED]
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    texts = [tokenizer(f" {word}")["input_ids"] for word in WORDS.split()]
    config = decode_config({"environments": {"a/B": {}}, "trainer": {"model": options.model}}, "benchmark")
    run = Run(config=config, folder=options.output, task_data=options.output / "none")
    extra = tuple(os.environ.get("SGLANG_OPTIONS", "").split())
    launch = Launch(model=options.model, context_tokens=2048, memory_saver=False, extra=extra)
    with (options.output / "weights.jsonl").open("w", encoding="utf-8") as file:

        def say(**row: Any) -> None:
            for sink in (sys.stdout, file):
                print(json.dumps(row), file=sink, flush=True)

        with interrupt.listening(), started(run, launch) as engine_for:
            engine = engine_for(model)
            on_device(model)
            bench = Bench(engine, engine._server.url, model, texts)  # pyright: ignore[reportPrivateUsage]
            first = copy.deepcopy(model)
            stops = healthy(bench, prompts, options.syncs, say)
            passed = sick(bench, first, prompts, say)
        say(**{"false stops": stops, "not stopped": passed})
    return bool(stops or passed)


if __name__ == "__main__":
    sys.exit(main())
