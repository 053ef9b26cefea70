"""The throughput benchmark plays a small mix against the stand-in for SGLang."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from orl_testing import SglangServer
from transformers import AutoTokenizer

from benchmarks.throughput import Deck, Mix, bare, flush, ours
from benchmarks.throughput_model import ADDED, SPECIAL, make_model, make_tokenizer

VOCABULARY = 2_000
MIX = Mix(rollouts=3, turns=3, action=5, new=120)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, vocabulary=VOCABULARY)
    return folder


@asynccontextmanager
async def serving() -> AsyncGenerator[SglangServer]:
    """A model that continues with random words."""
    chance = random.Random(0)

    def words(ids: list[int], sampling: dict[str, Any]) -> list[int]:
        assert sampling["ignore_eos"]
        return chance.choices(range(256, VOCABULARY - len(SPECIAL) - len(ADDED)), k=sampling["max_new_tokens"])

    async with SglangServer(words) as server:
        yield server


def deck_of(model: Path) -> Deck:
    return Deck(AutoTokenizer.from_pretrained(str(model)), MIX)


def test_every_id_decodes_and_words_encode_to_the_same_ids_again() -> None:
    hf = make_tokenizer(vocabulary=VOCABULARY)
    assert len(hf) == VOCABULARY
    assert all(hf.decode([token]) for token in range(VOCABULARY))
    ids = [token for token in random.Random(1).choices(range(VOCABULARY), k=500) if not 0 <= token < 256]
    assert len(ids) > 300
    assert hf.encode(hf.decode(ids), add_special_tokens=False) == ids


async def test_both_clients_play_the_same_mix(model: Path) -> None:
    deck = await asyncio.to_thread(deck_of, model)
    counts: list[int] = []
    for client in (ours, bare):
        async with serving() as server:
            _, faults = await client(server.url, deck)
            assert faults == []
            last = max(len(kept.body["input_ids"]) for kept in server.requests)
            assert last + MIX.action == deck.mix.context
            counts.append(server.prompt_tokens)
            await flush(server.url)
    assert counts[0] == counts[1]
