"""The example runs as it is, and the model gives up less often."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from orl_core import Datum, Renderer
from orl_launcher.playground import chats_of, rows_of
from orl_playground.game import END, end, play
from orl_rollout import load_tokenizer
from orl_rollout.run_folder.contract import WarmStart

GIVE_UP = {"role": "assistant", "content": "I give up."}
WARM_STEPS, WARM_BATCH = 40, 8


def example() -> ModuleType:
    """Return `examples/loop.py`, whose package slime has too."""
    place = spec_from_file_location("loop", Path(__file__).parents[2] / "examples" / "loop.py")
    assert place is not None
    assert place.loader is not None
    loop = module_from_spec(place)
    place.loader.exec_module(loop)
    return loop


def write_quitter(folder: Path) -> Sequence[Datum]:
    """Write a model that plays half of the games and gives up the others. Return the rows of games given up."""
    from orl_local.warm_start import train
    from orl_playground.tiny_model import write_tiny_model

    rng = random.Random(0)
    played = [play(END, end, rng) for _ in range(100)]
    games = [*played, *([game[0], GIVE_UP] for game in played)]
    untrained = folder / "untrained"
    write_tiny_model(untrained, chats_of(games), seed=0)
    rows = rows_of(games, Renderer(load_tokenizer(untrained)))
    order = [place for _ in range(WARM_STEPS) for place in rng.sample(range(len(rows)), WARM_BATCH)]
    start = WarmStart(
        model=str(untrained), output=folder / "quitter", rows=rows, order=order, batch_size=WARM_BATCH, lr=3e-3
    )
    train(start, lambda *_: None)
    return rows[len(played) :][:8]


def quit_probability(model: Any, quits: Sequence[Datum]) -> float:
    """Return the mean probability that `model` gives up at its first turn."""
    import torch

    from tests.local.updates import scores

    probabilities = list[float]()
    for row in quits:
        with torch.no_grad():
            logprobs = scores(model, (*row.prompt, *row.response))[-len(row.response) :]
        probabilities.append(float(logprobs[torch.tensor(row.loss_mask) > 0].sum().exp()))
    return sum(probabilities) / len(probabilities)


@pytest.mark.slow
def test_giving_up_becomes_rare(tmp_path: Path, guess_number: str, monkeypatch: pytest.MonkeyPatch):
    """Compare probabilities: the mean reward of so few games is noise, and differs between machines."""
    import torch

    torch.manual_seed(0)
    loop, quits = example(), write_quitter(tmp_path)
    before, update = list[float](), loop.update
    trained = list[Any]()

    def watched_update(model: Any, *rest: Any) -> None:
        before.append(quit_probability(model, quits))
        update(model, *rest)
        trained.append(model)

    monkeypatch.setattr(loop, "TASKS", 4)
    monkeypatch.setattr(loop, "update", watched_update)
    rewards = asyncio.run(loop.train(tmp_path / "quitter", guess_number, steps=3))
    assert len(rewards) == 3
    assert quit_probability(trained[-1], quits) < 0.7 * before[0], (before, rewards)
