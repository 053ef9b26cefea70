"""The whole algorithm in one file: a tiny model learns to find a number, with GRPO in plain torch.

    uv run --extra local python examples/loop.py

The first run makes the model, which takes about a minute. Then each step plays TASKS tasks, each GROUP times, on a real
OpenReward server on loopback, and updates the weights once. The mean reward rises.

`just train-local` trains the same model on the same game. The real trainers (local, slime, miles) add: a clipped ratio
and several updates of a batch; a KL penalty and other estimators of advantages; batches on many GPUs; an SGLang engine
that gets the new weights after each step; rollouts during training; evaluation and checkpoints. orl's `Runtime`
adds the journal, uploads, secrets and metrics, and stops a run in which too many rollouts fail. This file leaves all of
that out, because none of it changes the algorithm.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from orl_core import (
    Datum,
    EnvironmentConfig,
    Generation,
    Limits,
    Renderer,
    RolloutSpec,
    RunConfig,
    Task,
    TrainerConfig,
    reduce_reward,
    to_data,
)
from orl_launcher.playground import cached_model
from orl_playground import server
from orl_rollout import OpenRewardClient, load_tokenizer, prepare, read_tasks, rollout
from transformers import AutoModelForCausalLM, GenerationConfig

STEPS, TASKS, GROUP, LEARNING_RATE = 20, 8, 8, 4e-4
GAME = "playground/GuessNumber"
LIMITS = Limits(max_turns=6, turn_tokens=16, context_tokens=512, max_nudges=0)


class TorchEngine:
    """Sample the actions of all rollouts that wait, in one batch. The rollout loop calls `generate`."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.waiting: list[tuple[list[int], Mapping[str, Any], asyncio.Future[Generation]]] = []
        self.timer = asyncio.get_running_loop().call_soon(lambda: None)

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Return the token ids that the model samples after `ids`, and their logprobs."""
        running = asyncio.get_running_loop()
        answer: asyncio.Future[Generation] = running.create_future()
        self.waiting.append((list(ids), sampling, answer))
        self.timer.cancel()
        self.timer = running.call_later(0.02, self.answer)  # nobody joined for 20 ms: the batch is complete
        return await answer

    @torch.no_grad()
    def answer(self) -> None:
        """Sample one action for each waiting rollout. Prompts are padded on the left, so that all end together."""
        batch, self.waiting = self.waiting, []
        width = max(len(ids) for ids, _, _ in batch)
        stop_ids = batch[0][1]["stop_token_ids"]
        output = self.model.generate(
            torch.tensor([[0] * (width - len(ids)) + ids for ids, _, _ in batch]),
            attention_mask=torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _, _ in batch]),
            generation_config=GenerationConfig(
                max_new_tokens=min(sampling["max_new_tokens"] for _, sampling, _ in batch),
                do_sample=True,
                top_k=0,
                eos_token_id=stop_ids,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
            ),
        )
        sampled = output.sequences[:, width:]
        logprobs = torch.stack(output.logits, 1).log_softmax(-1).gather(2, sampled[:, :, None])[:, :, 0]
        for (_, _, answer), ids, values in zip(batch, sampled.tolist(), logprobs.tolist(), strict=True):
            stops = [index for index, token in enumerate(ids) if token in stop_ids]
            end, reason = (stops[0] + 1, "stop") if stops else (len(ids), "length")
            action = Generation(token_ids=tuple(ids[:end]), logprobs=tuple(values[:end]), finish_reason=reason)
            answer.set_result(action)


async def play_group(
    task: Task, step: int, client: OpenRewardClient, renderer: Renderer, engine: TorchEngine
) -> list[tuple[Datum, float]]:
    """Play `task` GROUP times. Return the data to train on, each with its advantage."""
    jobs = [RolloutSpec(task=task, rollout_id=f"{step}/{task.key}/{member}", limits=LIMITS) for member in range(GROUP)]
    trajectories = await asyncio.gather(
        *(rollout(job, session=client.session(task), renderer=renderer, engine=engine) for job in jobs)
    )
    valid = [trajectory for trajectory in trajectories if trajectory.trainable]  # a failure is not a reward of 0
    rewards = [reduce_reward(trajectory, client.config.environments[GAME]) for trajectory in valid]
    mean = sum(rewards) / max(1, len(rewards))
    return [
        (datum, reward - mean)
        for trajectory, reward in zip(valid, rewards, strict=True)
        for datum in to_data(trajectory, reward=reward)
    ]


def update(model: Any, optimizer: torch.optim.Optimizer, batch: Sequence[tuple[Datum, float]]) -> None:
    """Make actions that beat the mean of their group more likely, and the others less likely."""
    trained_tokens = sum(sum(datum.loss_mask) for datum, _ in batch)
    for datum, advantage in batch:
        ids = torch.tensor([[*datum.prompt, *datum.response]])
        logits = model(ids).logits[0, len(datum.prompt) - 1 : -1]  # each position predicts the next token
        logprobs = logits.log_softmax(-1).gather(1, torch.tensor(datum.response)[:, None])[:, 0]
        ratio = torch.exp(logprobs - torch.tensor(datum.logprobs))  # 1 here: the weights are those that sampled
        loss = -advantage * (ratio * torch.tensor(datum.loss_mask)).sum() / trained_tokens
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


async def train(checkpoint: Path, url: str, steps: int = STEPS) -> list[float]:
    """Train the model in `checkpoint` on the game that `url` serves. Return the mean reward of each step."""
    config = RunConfig(environments={GAME: EnvironmentConfig(base_url=url, nonterminal_reward=-1.0)})
    with tempfile.TemporaryDirectory() as folder:
        await prepare(config, f"{folder}/tasks.jsonl", max_tasks=steps * TASKS)
        tasks = list(read_tasks(f"{folder}/tasks.jsonl", config))
    renderer = Renderer(load_tokenizer(str(checkpoint)))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval()  # no dropout
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    engine, history = TorchEngine(model), list[float]()
    async with OpenRewardClient(config) as client:
        for step in range(steps):
            chosen = tasks[step * TASKS : (step + 1) * TASKS]
            groups = await asyncio.gather(*(play_group(task, step, client, renderer, engine) for task in chosen))
            batch = [pair for group in groups for pair in group]
            update(model, optimizer, batch)
            history.append(sum(datum.reward for datum, _ in batch) / len(batch))
            print(f"step {step + 1:2}: mean reward {history[-1]:6.3f}", flush=True)
    return history


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)  # for so small a model a second thread gains nothing
    warm_started = cached_model(
        RunConfig(environments={GAME: EnvironmentConfig()}, trainer=TrainerConfig(model=GAME)), Path("runs")
    )
    with server.serving() as [address]:
        asyncio.run(train(warm_started, address))
