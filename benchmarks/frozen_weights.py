"""Count the steps until a run ends whose engine never gets the trained weights, at two learning rates.

The loop is that of examples/loop.py, on the playground's model, with an engine that keeps the first weights. Training
is that of slime and miles by default: it takes its own logprobs for those that sampled, so that nothing corrects the
lag. A run whose engine gets each update is measured next to it: what remains is rounding.
"""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from orl_core import Datum, EnvironmentConfig, Renderer, RunConfig, TrainerConfig
from orl_launcher.made_models import cached_model
from orl_playground import server
from orl_rollout import OpenRewardClient, load_tokenizer, prepare, read_tasks
from orl_rollout.run_folder.judges import NOTICEABLE, LogprobDrift
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from examples.loop import GAME, GROUP, TASKS, TorchEngine, play_group

RATES = (4e-4, 4e-5)
MOST = 0.1  # trainer.max_logprob_difference
STEPS, QUICK_STEPS, CONTROL_STEPS = 400, 2, 10
SHOWN = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def run(console: Console, *, quick: bool) -> list[str]:
    """Train and print. A frozen engine that is never found is a complaint, and so is a fault without one."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    steps = QUICK_STEPS if quick else STEPS
    checkpoint = cached_model(
        RunConfig(environments={GAME: EnvironmentConfig()}, trainer=TrainerConfig(model=GAME)), Path("runs")
    )
    complaints: list[str] = []
    table = Table("learning rate", "engine", "warning at step", "end at step", "difference at step")
    with server.serving(["guessnumber"]) as address:
        for rate in RATES:
            for frozen in (True, False):
                most = steps if frozen else min(steps, CONTROL_STEPS)
                values, fault = asyncio.run(differences(checkpoint, address, rate, frozen=frozen, most=most))
                warned = next((step for step, value in enumerate(values, 1) if value > NOTICEABLE), None)
                shown = ", ".join(f"{step}: {values[step - 1]:.2g}" for step in SHOWN if step <= len(values))
                name = "frozen" if frozen else "updated"
                table.add_row(f"{rate:g}", name, str(warned), str(len(values)) if fault else "never", shown)
                if bool(fault) != frozen and not quick:
                    complaints.append(f"{name} engine at {rate:g}: {fault or f'not found in {most} steps'}")
    console.print(table)
    console.print(f"{TASKS} tasks x {GROUP} rollouts a step, one update, Adam; seed 0")
    return complaints


async def differences(
    checkpoint: Path, url: str, rate: float, *, frozen: bool, most: int, checked: bool = True
) -> tuple[list[float], str]:
    """Return the difference of each step, and the fault; if `checked`, a fault is the end."""
    config = RunConfig(environments={GAME: EnvironmentConfig(base_url=url, nonterminal_reward=-1.0)})
    with tempfile.TemporaryDirectory() as folder:
        await prepare(config, f"{folder}/tasks.jsonl", max_tasks=most * TASKS)
        tasks = list(read_tasks(f"{folder}/tasks.jsonl", config))
    renderer = Renderer(load_tokenizer(str(checkpoint)))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32", trust_remote_code=False).eval()
    engine = TorchEngine(copy.deepcopy(model) if frozen else model)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    values, drift = list[float](), LogprobDrift(MOST)
    async with OpenRewardClient(config) as client:
        while len(values) < most and not (checked and drift.fault):
            at = len(values) * TASKS
            chosen = [tasks[(at + index) % len(tasks)] for index in range(TASKS)]
            plays = (play_group(task, len(values), client, renderer, engine) for task in chosen)
            batch = [pair for group in await asyncio.gather(*plays) for pair in group]
            values.append(_update(model, optimizer, batch))
            drift.add(values[-1])
    return values, drift.fault


def _update(model: Any, optimizer: torch.optim.Optimizer, batch: Sequence[tuple[Datum, float]]) -> float:
    """Train on a batch. Return the mean over rollouts of the mean absolute difference of logprobs before it."""
    trained_tokens = sum(sum(datum.loss_mask) for datum, _ in batch)
    differences: list[float] = []
    for datum, advantage in batch:
        ids = torch.tensor([[*datum.prompt, *datum.response]])
        logits = model(ids).logits[0, len(datum.prompt) - 1 : -1]
        logprobs = logits.log_softmax(-1).gather(1, torch.tensor(datum.response)[:, None])[:, 0]
        mask = torch.tensor(datum.loss_mask)
        apart = (logprobs.detach() - torch.tensor(datum.logprobs)).abs()
        differences.append(float((apart * mask).sum() / mask.sum().clamp(min=1)))
        ratio = torch.exp(logprobs - logprobs.detach())  # 1: the trainer's own logprobs count as those that sampled
        (-advantage * (ratio * mask).sum() / trained_tokens).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return fmean(differences)
