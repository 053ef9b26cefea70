"""`python -m benchmarks.throughput --url URL --model FOLDER`: our rollouts against a bare client's requests.

Ids per second of two clients that play the same mix against one SGLang server, measured in interleaved rounds with an
empty prefix cache. Both have as many conversations in the server at
once, of as many turns; each turn adds the same number of new ids to the prompt and asks for the same number of ids of
answer, and the answers stay in the context. Ours is the whole loop: it renders, parses and calls. The bare client posts
the bodies that ours posts, without knowing what is in them. It is no part of `just bench`, because it needs a GPU:
FOLDER is what `benchmarks.throughput_model` makes, served with

    python -m sglang.launch_server --model-path FOLDER --load-format dummy --dtype bfloat16
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from msgspec import Struct, structs
from orl_core.limits import Limits
from orl_core.messages import Message, text_message
from orl_core.render import Renderer
from orl_core.trajectory import Generation, RolloutSpec, StopReason
from orl_rollout.loop.engine import Engine
from orl_rollout.loop.loop import rollout
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.tokenizer.tokenizer import HFTokenizer
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from benchmarks import one_gpu
from benchmarks.engine_time import OPENING, TOOL, instant
from benchmarks.servers import many_files
from benchmarks.world import TASK

ROUNDS = 3
NOTES = 64  # words of the system message, different in each rollout, so that rollouts have no prefix in common
CALL = '\n<tool_call>\n{"name": "run", "arguments": {"command": "ls"}}\n</tool_call><|im_end|>'


class Mix(Struct, frozen=True, kw_only=True):
    """Sizes of a run, in token ids: the first prompt, then `turns` answers of `action` with `new` ids between them."""

    rollouts: int
    turns: int = 8
    action: int = 128
    new: int = 300
    prompt: int = 0

    @property
    def generated(self) -> int:
        """The ids that the server generates."""
        return self.rollouts * self.turns * self.action

    @property
    def context(self) -> int:
        """The length of a conversation at its end."""
        return self.prompt + self.turns * self.action + (self.turns - 1) * self.new


Played = tuple[float, list[str]]  # wall seconds, faults


class Deck:
    """Texts of a benchmark: the tokenizer and its renderer, the call that ends each action, words of one id each."""

    def __init__(self, hf: PreTrainedTokenizerFast, mix: Mix) -> None:
        self.hf = hf
        self.renderer = Renderer(HFTokenizer(hf))
        self.call: list[int] = hf.encode(CALL, add_special_tokens=False)
        self.words = sorted(f" {piece[1:]}" for piece in hf.get_vocab() if len(piece) == 4 and piece.startswith("Ġ"))
        chance = random.Random(0)
        empty = len(self.renderer.extend(self.call, [text_message("tool", "", name="run")], calls_before=0))
        self.said = self.text(mix.new - len(self.call) - empty, chance)
        self.mix = structs.replace(mix, prompt=len(self.renderer.open((self.notes(0), OPENING), (TOOL,))))

    def text(self, count: int, chance: random.Random) -> str:
        """A text of `count` ids."""
        return "".join(chance.choices(self.words, k=count))

    def notes(self, seed: int) -> Message:
        """A message with which no other rollout begins."""
        return text_message("system", self.text(NOTES, random.Random(seed)))


class Calling:
    """An engine whose model makes a call at the end of each action, which weights by chance never would."""

    def __init__(self, engine: Engine, call: Sequence[int]) -> None:
        self._engine = engine
        self._call = tuple(call)

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        most = sampling["max_new_tokens"] - len(self._call)
        said = await self._engine.generate(ids, {**sampling, "max_new_tokens": most}, key=key)
        logprobs = (*said.logprobs, *(0.0 for _ in self._call))
        return structs.replace(said, token_ids=(*said.token_ids, *self._call), logprobs=logprobs, finish_reason="stop")


async def ours(url: str, deck: Deck) -> Played:
    """The real loop, SglangEngine and renderer, with environments that answer at once."""
    mix, call = deck.mix, len(deck.call)
    room = mix.context + mix.turns * mix.new
    limits = Limits(
        max_turns=mix.turns,
        turn_tokens=mix.action + call,
        rollout_tokens=room,
        context_tokens=room,
        max_nudges=mix.turns,
        max_invalid=mix.turns + 1,
        turn_timeout=900.0,
    )
    sampling = {"temperature": 1.0, "ignore_eos": True}
    started = time.monotonic()
    async with SglangEngine(url, context_tokens=room) as engine:
        trajectories = await asyncio.gather(
            *(
                rollout(
                    RolloutSpec(task=TASK, rollout_id=f"{number:032d}", limits=limits, sampling=sampling),
                    session=instant(deck.said, deck.notes(number)),
                    renderer=deck.renderer,
                    engine=Calling(engine, deck.call),
                )
                for number in range(mix.rollouts)
            )
        )
    seconds = time.monotonic() - started
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    generated = sum(len(turn.action_ids) - call * len(turn.generations) for turn in turns)
    faults = [f"{one.stop_reason} {one.error}" for one in trajectories if one.stop_reason is not StopReason.MAX_TURNS]
    return seconds, faults or [f"generated {generated} ids"] * (generated != mix.generated)


async def bare(url: str, deck: Deck) -> Played:
    """The bodies of ours, from a client that knows no messages; what is new in a prompt is words by chance."""
    mix, chance = deck.mix, random.Random(0)
    known: list[int] = deck.hf.encode("".join(deck.words[:1000]), add_special_tokens=False)
    work = one_gpu.Work(
        openings=tuple(tuple(chance.choices(known, k=mix.prompt)) for _ in range(mix.rollouts)),
        observation=tuple(chance.choices(known, k=mix.new)),
        lengths=((mix.action,) * mix.turns,) * mix.rollouts,
    )
    started = time.monotonic()
    await one_gpu.bare(work, url)
    return time.monotonic() - started, []


async def flush(url: str) -> None:
    """Empty the server's prefix cache; a request that has just ended may hold it up for a moment."""
    async with aiohttp.ClientSession() as http:
        for _ in range(50):
            async with http.post(f"{url}/flush_cache") as response:
                if response.status == 200:
                    return
            await asyncio.sleep(0.1)
    raise SystemExit(f"{url}/flush_cache: refused for 5 s")


CLIENTS = {"orl": ours, "bare client": bare}


async def play(url: str, deck: Deck) -> tuple[dict[str, float], list[str]]:
    """The seconds of each client, medians of rounds, and faults. A run of ours before compiles kernels."""
    runs: dict[str, list[Played]] = {name: [] for name in CLIENTS}
    await ours(url, deck)
    for _, (name, client) in itertools.product(range(ROUNDS), CLIENTS.items()):
        await flush(url)
        runs[name].append(await client(url, deck))
    seconds = {name: statistics.median(one for one, _ in of) for name, of in runs.items()}
    return seconds, [fault for of in runs.values() for _, faults in of for fault in faults]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="the server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", type=Path, required=True, help="the folder that it serves")
    parser.add_argument("--rollouts", type=int, nargs="+", default=[64, 256], help="how many at once")
    chosen = parser.parse_args(arguments)
    many_files()
    console, complaints = Console(width=120), list[str]()
    hf = AutoTokenizer.from_pretrained(str(chosen.model), trust_remote_code=False)
    table = Table("at once", "context in the end", *(f"{name}, ids a second" for name in CLIENTS), "ratio")
    for deck in (Deck(hf, Mix(rollouts=rollouts)) for rollouts in chosen.rollouts):
        seconds, faults = asyncio.run(play(chosen.url, deck))
        complaints += faults
        mine, other = (deck.mix.generated / one for one in seconds.values())
        figures = (f"{mine:,.0f}", f"{other:,.0f}", f"{mine / other:.3f}")
        table.add_row(f"{deck.mix.rollouts:,}", f"{deck.mix.context:,}", *figures)
    console.print(table)
    for complaint in complaints:
        console.print(complaint, style="red", markup=False)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
