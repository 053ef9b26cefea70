"""The example runs as it is, and the model gives up less often."""

from __future__ import annotations

import asyncio
import random
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from orl_core import Renderer
from orl_launcher.made_models import chats_of, rows_of
from orl_playground.players import END, end, play
from orl_rollout import load_tokenizer
from orl_trl.warm_start import write_tiny_model
from orl_trl.warm_start.training import row_of
from transformers import AutoModelForCausalLM

LOOP = spec_from_file_location("loop", Path(__file__).parents[2] / "examples" / "loop.py")  # slime has `examples` too
assert LOOP is not None
assert LOOP.loader is not None
loop = module_from_spec(LOOP)
LOOP.loader.exec_module(loop)

GIVE_UP = {"role": "assistant", "content": "I give up."}
WARM_STEPS, WARM_BATCH = 100, 8


def write_quitter(folder: Path) -> list[dict[str, list[int]]]:
    """Write a model that plays half of the games and gives up the others. Return the rows of games given up."""
    rng = random.Random(0)
    played = [play(END, end, rng) for _ in range(100)]
    games = [*played, *([game[0], GIVE_UP] for game in played)]
    write_tiny_model(folder, chats_of(games), seed=0)
    rows = [*map(row_of, rows_of(games, Renderer(load_tokenizer(folder))))]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32", trust_remote_code=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(WARM_STEPS):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, 1.1 - step / WARM_STEPS)
        batch = rng.sample(rows, WARM_BATCH)
        length = max(len(game["input_ids"]) for game in batch)
        ids = [game["input_ids"] + [0] * (length - len(game["input_ids"])) for game in batch]
        labels = [game["labels"] + [-100] * (length - len(game["labels"])) for game in batch]
        model(input_ids=torch.tensor(ids), labels=torch.tensor(labels)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return rows[len(played) :][:8]


@torch.no_grad()
def quit_probability(model: Any, quits: list[dict[str, list[int]]]) -> float:
    """Return the mean probability that `model` gives up at its first turn."""
    probabilities = list[float]()
    for quit_row in quits:
        labels = torch.tensor(quit_row["labels"])[1:]
        logprobs = model(torch.tensor([quit_row["input_ids"]])).logits[0, :-1].log_softmax(-1)
        taught = labels != -100
        probabilities.append(logprobs[taught].gather(1, labels[taught][:, None]).sum().exp().item())
    return sum(probabilities) / len(probabilities)


@pytest.mark.slow
def test_giving_up_becomes_rare(tmp_path: Path, guess_number: str, monkeypatch: pytest.MonkeyPatch):
    """Compare probabilities: the mean reward of so few games is noise, and differs between machines."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    quits = write_quitter(tmp_path)
    before, update = list[float](), loop.update
    trained = list[Any]()

    def watched_update(model: Any, *rest: Any) -> None:
        before.append(quit_probability(model, quits))
        update(model, *rest)
        trained.append(model)

    monkeypatch.setattr(loop, "TASKS", 4)
    monkeypatch.setattr(loop, "update", watched_update)
    rewards = asyncio.run(loop.train(tmp_path, guess_number, steps=5))
    assert len(rewards) == 5
    assert quit_probability(trained[-1], quits) < 0.7 * before[0], (before, rewards)
