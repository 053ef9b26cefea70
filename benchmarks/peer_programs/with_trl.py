"""Play and train with TRL: GRPOTrainer's `environment_factory`, and its own OpenReward integration.

Where only its loop is measured, the model's `generate` returns a fixed answer, and the tool answers in this process.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any

import torch
from asked import OPENING, Answer, answer, work
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template
from trl.experimental.openreward import OpenRewardSpec

ROOM = 1 << 17
SIZES = dict.fromkeys(("hidden_size", "intermediate_size", "head_dim"), 8)
ONE = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
WORK = work()
STARTED: list[float] = []


class Played(Exception):
    """The rollouts are over, and nothing is to be trained."""


class Fixed(Qwen3ForCausalLM):
    said: torch.Tensor

    def generate(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.cat([input_ids, self.said.expand(len(input_ids), -1)], 1)


class Keeping(GRPOTrainer):
    """Keeps what the loss is computed of: the ids of the first row that train, and its length."""

    kept: tuple[list[int], int]

    def compute_loss(self, model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        mask = inputs["completion_mask"][0] * inputs["tool_mask"][0]
        length = inputs["prompt_mask"][0].sum() + inputs["completion_mask"][0].sum()
        self.kept = inputs["completion_ids"][0][mask.bool()].tolist(), int(length)
        return super().compute_loss(model, inputs, *more, **named)


class Free:
    def reset(self, **_: Any) -> None:
        STARTED.append(time.process_time())

    def run(self, command: str) -> str:
        """Run a command.

        Args:
            command: the command
        """
        return WORK.said


def tokenizer_of(folder: str) -> Any:
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    tokenizer.response_template = qwen3_template
    return tokenizer


def spec_of(url: str, **more: Any) -> OpenRewardSpec:
    """Point the integration at a server on loopback: without the variables its SDK asks `sessions.127.0.0.1`."""
    os.environ["OPENREWARD_API_URL"] = os.environ["OPENREWARD_SESSION_URL"] = url
    return OpenRewardSpec(url, include_metadata=False, **more)


def train(model: Any, tokenizer: Any, data: Any, factory: Any, reward: Any, saving: Any = None, **more: Any) -> Keeping:
    quiet = {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no"}
    with TemporaryDirectory() as folder, suppress(Played):
        settings = GRPOConfig(folder, use_cpu=True, bf16=False, gradient_checkpointing=False, **quiet, **more)
        named = {"train_dataset": data, "processing_class": tokenizer, "environment_factory": factory}
        trainer = Keeping(model, reward, settings, callbacks=[saving] if saving else [], **named)
        trainer.train()
    return trainer


def play(action: str, episodes: int, turns: int, rows: bool = False, url: str = "") -> Answer:
    tokenizer, found, ids, count = tokenizer_of(WORK.folder), Answer(), WORK.actions[action], max(2, episodes)
    config = Qwen3Config(vocab_size=len(tokenizer), max_position_embeddings=ROOM, **SIZES, **ONE)
    model = Fixed(config)
    model.said = torch.tensor([ids])
    data, factory = Dataset.from_dict({"prompt": [[{"role": "user", "content": OPENING}]] * count}), Free
    STARTED[:] = [time.process_time()]
    if url:
        spec = spec_of(url, num_tasks=1)
        data, factory = spec.train_dataset, spec.environment_factory

    def reward(completions: Any, environments: Any, **_: Any) -> Any:
        found["ms"] = 1000 * (time.process_time() - STARTED[min(1, len(STARTED) - 1)]) / count / turns
        found["read"] = [one["content"] for one in completions[0] if one["role"] == "tool"]
        found["ending"] = f"plays on, reward {environments[0].reward:g}, error None" if url else ""
        if rows:
            return [float(row) for row in range(count)]
        raise Played

    limits = {"max_completion_length": ROOM, "max_tool_calling_iterations": turns - 1}
    batch = {"per_device_train_batch_size": count, "num_generations": 2, "max_steps": 1}
    trained = train(model, tokenizer, data, factory, reward, **limits, **batch)
    if rows:
        found["trained"], length = trained.kept
        found["rows"] = [length]
    return found


def step(model: str, url: str, tool: Any, steps: list[int], output: str, more: dict[str, Any]) -> Answer:
    spec, tokenizer = spec_of(url, env_name="guessnumber"), tokenizer_of(model)
    # So small a model knows the tool as the server tells it; told as TRL does, it makes no call.
    tokenizer.chat_template = tokenizer.chat_template.replace("tool | tojson", json.dumps(json.dumps(tool)))
    learner, plain = (
        AutoModelForCausalLM.from_pretrained(model, trust_remote_code=False),
        AutoTokenizer.from_pretrained(model, trust_remote_code=False),
    )

    class Saving(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
            for part in (learner, plain) if state.global_step in steps else ():
                part.save_pretrained(f"{output}-{state.global_step}")

    parts = spec.train_dataset, spec.environment_factory, spec.reward_funcs
    wall, cpu = time.monotonic(), time.process_time()
    train(learner, tokenizer, *parts, Saving(), max_steps=steps[-1], **more)
    return {"cpu": time.process_time() - cpu, "wall": time.monotonic() - wall}


if __name__ == "__main__":
    answer(play=play, step=step)
