"""Train with TRL's own GRPOTrainer: orl plays the rollouts, and TRL owns all the rest.

    uv run --extra trl python examples/trl_rollout.py

The first run makes the model, which takes about a minute.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from datasets import Dataset
from orl_core.config import EnvironmentConfig, RolloutConfig, RunConfig, TrainerConfig
from orl_launcher.playground import cached_model
from orl_playground import server
from orl_rollout import prepare, read_tasks
from orl_trl import reward, rollout_function
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

GAME = "playground/GuessNumber"
FOLDER = Path("runs")


def train(checkpoint: Path, url: str) -> Any:
    """Train the model in `checkpoint` for five steps on the game that `url` serves. Return TRL's trainer."""
    config = RunConfig(
        environments={GAME: EnvironmentConfig(base_url=url, max_turns=4, nonterminal_reward=-1.0)},
        rollout=RolloutConfig(turn_tokens=16, context_tokens=1024),
    )
    asyncio.run(prepare(config, FOLDER / "tasks.jsonl", max_tasks=10))
    tasks = list(read_tasks(FOLDER / "tasks.jsonl", config))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    settings = GRPOConfig(
        str(FOLDER / "trl"),
        learning_rate=4e-4,
        per_device_train_batch_size=16,  # 2 tasks, each played 8 times
        max_steps=5,
        logging_steps=1,
        save_strategy="no",
        bf16=False,
    )
    with rollout_function(config, tasks, model) as rollouts:
        data = Dataset.from_dict({"prompt": [task.key for task in tasks]})
        trainer = GRPOTrainer(model, reward, settings, data, rollout_func=rollouts)
        trainer.train()
    return trainer


if __name__ == "__main__":
    model = TrainerConfig(model=GAME)
    warm_started = cached_model(RunConfig(environments={GAME: EnvironmentConfig()}, trainer=model), FOLDER)
    with server.serving() as [address]:
        train(warm_started, address)
