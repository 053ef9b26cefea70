"""One GPU: ids a second of each engine, the phases of a step, and memory next to the estimate, in one run.

The same conversations, with actions of lengths drawn once, are played by a bare HTTP client, by orl's client of SGLang
and by the engine in the training process. Then the weights are synced, and the rows are trained as in a step.
The weights are random, and no stop id ends an action. Without a GPU a stand-in takes SGLang's place and the model is
tiny: that shows that the benchmark runs, and no more. The variable SGLANG_OPTIONS holds further options of SGLang, such
as `--attention-backend triton`.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import aiohttp
import msgspec
import torch
from msgspec import Struct, structs
from orl_core.config import RunConfig, decode_config
from orl_core.datum import Datum
from orl_local.engine.control import Launch
from orl_local.engine.engine_plan import EngineChoice
from orl_local.engine.engine_process import EngineProcess
from orl_local.engine.in_process_engine import InProcessEngine, loop_thread
from orl_local.engine.local_model import load_model, on_device
from orl_local.engine.served_engine import Server, WeightSender
from orl_local.engine.sglang_control import SglangControl
from orl_local.engine.weights import SharedWeights, sglang_handles
from orl_local.learner import Learner
from orl_local.memory import fitted, sizes_of, training
from orl_local.settings import Settings, settings_of
from orl_rollout.edge import interrupt
from orl_rollout.gpus import gpu_memory
from orl_rollout.loop.engine import Engine
from orl_rollout.memory import config_of, shape_of
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.training.rows import Row
from orl_testing import SglangServer
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.throughput_model import make_tokenizer

T = TypeVar("T")

OPENING, OBSERVATION = 600, 300  # ids of the first observation, and of those after an action
GIB = 2**30
SHARE = ("--mem-fraction-static", "0.4")
SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim")
SHAPES = {  # of Qwen3-0.6B, and of a model for a CPU
    False: dict(zip(SIZES, (151_936, 1024, 3072, 28, 16, 128), strict=True)),
    True: dict(zip(SIZES, (1024, 32, 64, 2, 2, 16), strict=True)),
}


class Work(Struct, frozen=True, kw_only=True):
    """Conversations: the ids before each action, and the ids that each action has, turn by turn."""

    openings: tuple[tuple[int, ...], ...]
    observation: tuple[int, ...]
    lengths: tuple[tuple[int, ...], ...]

    @property
    def actions(self) -> int:
        """The ids of all actions."""
        return sum(map(sum, self.lengths))


def work_of(rows: int, turns: int, vocabulary: int, scale: int) -> Work:
    """Draw conversations; all lengths are divided by `scale`."""
    draw = random.Random(0)
    lengths = [[min(512, max(16, int(draw.lognormvariate(4.6, 0.8)))) for _ in range(turns)] for _ in range(rows)]
    ids = [[draw.randrange(vocabulary // 2) for _ in range(OPENING // scale)] for _ in range(rows)]
    return Work(
        openings=tuple(map(tuple, ids)),
        observation=tuple(draw.randrange(vocabulary // 2) for _ in range(OBSERVATION // scale)),
        lengths=tuple(tuple(-(-length // scale) for length in row) for row in lengths),
    )


Sample = Callable[[Sequence[int], int, str], Any]  # (ids, ids of the action, key) -> the ids of the action


async def play(work: Work, sample: Sample) -> list[list[int]]:
    """Play all conversations at once; return their ids."""

    async def talk(row: int) -> list[int]:
        ids = list(work.openings[row])
        for turn, length in enumerate(work.lengths[row]):
            ids += work.observation if turn else ()
            ids += await sample(ids, length, str(row))
        return ids

    return await asyncio.gather(*(talk(row) for row in range(len(work.openings))))


async def bare(work: Work, url: str) -> list[list[int]]:
    """Play with plain HTTP requests."""
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:

        async def sample(ids: Sequence[int], length: int, _: str) -> list[int]:
            sampling = {"max_new_tokens": length, "temperature": 1.0, "ignore_eos": True}
            body = {"input_ids": ids, "return_logprob": True, "sampling_params": sampling}
            headers = {"Content-Type": "application/json"}
            async with http.post(f"{url}/generate", data=msgspec.json.encode(body), headers=headers) as answer:
                answer.raise_for_status()
                told = msgspec.json.decode(await answer.read())
            return [token for _, token, *_ in told["meta_info"]["output_token_logprobs"]]

        return await play(work, sample)


async def ours(work: Work, engine: Engine, more: Mapping[str, Any]) -> list[list[int]]:
    """Play with one of orl's engines."""

    async def sample(ids: Sequence[int], length: int, key: str) -> Sequence[int]:
        sampling = {"max_new_tokens": length, "temperature": 1.0, **more}
        return (await engine.generate(ids, sampling, key=key)).token_ids

    return await play(work, sample)


async def by_sglang(work: Work, url: str) -> list[list[int]]:
    async with SglangEngine(url, context_tokens=32_768) as engine:
        return await ours(work, engine, {"ignore_eos": True})


def in_process(work: Work, model: Any) -> list[list[int]]:
    engine = InProcessEngine(model)
    with loop_thread() as submit:
        return engine.serve(until=submit(ours(work, engine, {})))


def make_checkpoint(folder: Path, *, small: bool) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SHAPES[small], "num_key_value_heads": SHAPES[small]["num_attention_heads"] // 2}
    config = Qwen3Config(**sizes, max_position_embeddings=40_960, tie_word_embeddings=True, dtype="bfloat16")
    AutoModelForCausalLM.from_config(config, trust_remote_code=False).save_pretrained(folder)
    make_tokenizer(vocabulary=config.vocab_size).save_pretrained(folder)


@contextmanager
def stand_in() -> Generator[str]:
    """Serve SGLang's stand-in from another thread."""
    server = SglangServer(lambda _, sampling: [5] * sampling["max_new_tokens"])
    with loop_thread() as submit:
        submit(server.__aenter__()).result()
        try:
            yield server.url
        finally:
            submit(server.__aexit__(None, None, None)).result()


@contextmanager
def sglang(folder: Path) -> Generator[str]:
    extra = (*SHARE, *os.environ.get("SGLANG_OPTIONS", "").split())
    launch = Launch(control=SglangControl, model=str(folder), context_tokens=32_768, memory_saver=False, extra=extra)
    with EngineProcess(launch, folder, os.environ) as process:
        asyncio.run(process.wait())
        yield process.url


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what `work` returns and its seconds, to the end of what the GPU computes."""
    started = time.monotonic()
    found = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found, time.monotonic() - started


def settings_for(folder: Path, rows: int, context: int, gpu: bool) -> tuple[RunConfig, Settings]:
    """Return the configuration and the settings of a run whose only update has `rows` rollouts."""
    trainer = {"model": str(folder), "n_samples": rows, "rollout_batch_size": 1, "local": {"updates": 1, "warmup": 0}}
    tree = {"environments": {"bench/None": {}}, "rollout": {"context_tokens": context}, "trainer": trainer}
    config = decode_config(tree, "the benchmark")
    settings = settings_of(config, None)
    shape = shape_of(config_of(str(folder)))
    engine = EngineChoice(engine="sglang", reason="", options=SHARE)
    return config, fitted(config, settings, shape, gpu_memory()[:1] if gpu else (), 1, engine)[0]


def rows_of(conversations: Sequence[Sequence[int]], prompt: int) -> list[Row]:
    """Return rows whose first `prompt` ids are their prompt; all others train."""
    rows: list[Row] = []
    for number, ids in enumerate(conversations):
        response = tuple(ids[prompt:])
        ones = (1,) * len(response)
        datum = Datum(
            task_key="",
            rollout_id=str(number),
            prompt=tuple(ids[:prompt]),
            response=response,
            sampled=ones,
            loss_mask=ones,
            logprobs=(-1.0,) * len(response),
        )
        rows.append(Row(datum=datum, advantages=((-1.0) ** number,) * len(response)))
    return rows


class Weights(SharedWeights):
    """Weights in this process, asked as those in another one."""

    async def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self, name)(*arguments)

    def stop(self) -> None: ...


def syncs_to(url: str, model: Any, *, small: bool) -> dict[str, float]:
    """Return the seconds of each way to send the weights, once it has run before."""
    control = SglangControl(url)
    seconds: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        ways = {"sync, checkpoint": False} if small else {"sync, checkpoint": False, "sync": True}
        for name, handles in ways.items():
            server = Server(url=url, context_tokens=0, folder=Path(folder), own=handles)
            sender = WeightSender(Weights(model, handles=sglang_handles), control, server)
            asyncio.run(sender.send("0"))
            _, seconds[name] = timed(lambda sender=sender: asyncio.run(sender.send("1")))
    return seconds


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; complain of an engine with other weights, and of memory far from the estimate."""
    small = quick or not torch.cuda.is_available()
    rows, turns, scale = (4, 2, 16) if small else (64, 2, 1)
    work = work_of(rows, turns, SHAPES[small]["vocab_size"], scale)
    with TemporaryDirectory() as name:
        folder = Path(name)
        make_checkpoint(folder, small=small)
        serving: AbstractContextManager[str] = stand_in() if small else sglang(folder)
        with serving as url:
            return measure(console, work, folder, url, small=small)


def measure(console: Console, work: Work, folder: Path, url: str, *, small: bool) -> list[str]:
    model = on_device(load_model(str(folder)))
    asyncio.run(bare(work_of(4, 1, 1024, 16), url))
    _, plain = timed(lambda: asyncio.run(bare(work, url)))
    played, mine = timed(lambda: asyncio.run(by_sglang(work, url)))
    _, inside = timed(lambda: in_process(work, model.eval()))
    phases = {"sampling": mine, **syncs_to(url, model, small=small)}
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    longest = max(map(len, played))
    config, settings = settings_for(folder, len(played), longest, gpu=not small)
    learner = Learner(model, structs.replace(settings, max_logprob_difference=inf), interrupt.check)
    rows = rows_of(played, len(work.openings[0]))
    for step in (1, 2):  # the second one is measured
        _, phases["update"] = timed(lambda step=step: learner.update(rows, step))
    table = Table("engine", "ids a second", "of bare SGLang")
    for engine, seconds in (("bare SGLang", plain), ("SGLang by orl", mine), ("in the training process", inside)):
        table.add_row(engine, f"{work.actions / seconds:,.0f}", f"{plain / seconds:.2f}")
    console.print(table)
    table = Table("phase of a step", "seconds", "of sampling")
    for phase, seconds in phases.items():
        table.add_row(phase, f"{seconds:.2f}", f"{seconds / mine:.2f}")
    console.print(table)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    estimate = training(shape_of(model.config.to_dict()), sizes_of(config, settings)).total
    console.print(
        f"{len(played)} conversations of up to {longest} ids; update: peak {peak / GIB:.2f} GiB, estimate "
        f"{estimate / GIB:.2f} GiB"
    )
    return [f"peak memory is {peak / estimate:.2f} of the estimate"] * (peak > 1.15 * estimate)
