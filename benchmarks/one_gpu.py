"""One GPU: ids a second of each engine, the phases of a step, and memory next to the estimate, in one run.

The same conversations, with actions of lengths drawn once, are played by a bare HTTP client, by orl's client of SGLang
and by the engine in the training process. Then the weights are synced, the rows are scored and trained as in a step.
The weights are random, and no stop id ends an action. Without a GPU a stand-in takes SGLang's place and the model is
tiny: that shows that the benchmark runs, and no more. The variable SGLANG_OPTIONS holds further options of SGLang, such
as `--attention-backend triton`.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import aiohttp
import msgspec
import torch
from msgspec import Struct
from orl_core.config import decode_config
from orl_core.config.trainer import MAX_LOGPROB_DIFFERENCE
from orl_core.task import Task
from orl_rollout.loop.engine import Engine
from orl_rollout.memory.model import shape_of
from orl_rollout.run_folder.contract import Run
from orl_rollout.sglang.client import SglangEngine
from orl_testing import SglangServer
from orl_trl.engine.in_process_engine import InProcessEngine
from orl_trl.engine.local_model import load_model, on_device
from orl_trl.engine.loop_thread import LoopThread
from orl_trl.engine.sglang_control import SglangControl
from orl_trl.engine.sglang_process import Launch, SglangProcess
from orl_trl.engine.weights import WeightSender
from orl_trl.run_plan.gpu_memory import sizes_of, training
from orl_trl.run_plan.settings import CHECKPOINTING, grpo_config
from orl_trl.run_plan.training_plan import TrainingPlan
from orl_trl.training.rollouts import Rollouts
from orl_trl.training.training_run import quiet_trl, trainer_of
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen3Config

from benchmarks.throughput_model import make_tokenizer

T = TypeVar("T")

OPENING, OBSERVATION = 600, 300  # ids of the first observation, and of those after an action
GIB = 2**30
SHAPES = {  # of Qwen3-0.6B, and of a model for a CPU
    False: {"vocab_size": 151_936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28},
    True: {"vocab_size": 1024, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
}
HEADS = {
    False: {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128},
    True: {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16},
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
    with LoopThread() as loop:
        return engine.serve(until=loop.submit(ours(work, engine, {})))


def make_checkpoint(folder: Path, *, small: bool) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SHAPES[small], **HEADS[small]}
    config = Qwen3Config(**sizes, max_position_embeddings=40_960, tie_word_embeddings=True, dtype="bfloat16")
    AutoModelForCausalLM.from_config(config, trust_remote_code=False).save_pretrained(folder)
    make_tokenizer(vocabulary=config.vocab_size).save_pretrained(folder)


@contextmanager
def stand_in() -> Generator[str]:
    """Serve SGLang's stand-in from another thread."""
    server = SglangServer(lambda _, sampling: [5] * sampling["max_new_tokens"])
    with LoopThread() as loop:
        loop.submit(server.__aenter__()).result()
        try:
            yield server.url
        finally:
            loop.submit(server.__aexit__(None, None, None)).result()


@contextmanager
def sglang(folder: Path) -> Generator[str]:
    extra = ("--mem-fraction-static", "0.4", *os.environ.get("SGLANG_OPTIONS", "").split())
    launch = Launch(model=str(folder), context_tokens=32_768, memory_saver=False, extra=extra)
    with SglangProcess(launch, folder, os.environ) as process:
        process.wait()
        yield process.url


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return what `work` returns and its seconds, to the end of what the GPU computes."""
    started = time.monotonic()
    found = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found, time.monotonic() - started


def trainer_for(folder: Path, model: Any, rows: int) -> tuple[Any, Run]:
    """Make the trainer of a run whose update has `rows` rows."""
    trainer = {"model": str(folder), "n_samples": rows, "rollout_batch_size": 1}
    config = decode_config({"environments": {"bench/None": {}}, "trainer": trainer}, "the benchmark")
    run = Run(config=config, folder=folder, task_data=folder / "tasks.jsonl", extra=("--steps-per-generation", "1"))
    settings = grpo_config(run, parameters=model.num_parameters())
    task = Task(env_name="bench/None", deployment_name="bench/None", split="train", index=0)
    nothing: dict[str, Any] = {"held_out": (), "eval_samples": 1, "sampling": {}, "eval_sampling": {}}
    plan = TrainingPlan(tasks={task.key: task}, concurrency=rows, **nothing)
    rollouts = Rollouts(plan, InProcessEngine(model), nullcontext)  # pyright: ignore[reportArgumentType]
    made = trainer_of(model, str(folder), settings, rollouts)
    made.create_optimizer()
    made.current_gradient_accumulation_steps = 1
    if getattr(settings, CHECKPOINTING):  # a run's train() does this
        getattr(model, f"{CHECKPOINTING}_enable")()
    return made, run


def batch_of(conversations: Sequence[Sequence[int]], prompt: int, device: torch.device) -> dict[str, torch.Tensor]:
    """TRL's batch of conversations whose first `prompt` ids are their prompt; all others train."""
    width = max(map(len, conversations))
    ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in conversations], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in conversations], device=device)
    return {
        "prompt_ids": ids[:, :prompt],
        "prompt_mask": mask[:, :prompt],
        "completion_ids": ids[:, prompt:],
        "completion_mask": mask[:, prompt:],
        "advantages": torch.linspace(-1, 1, len(conversations), device=device),
        "num_items_in_batch": mask[:, prompt:].sum(),
    }


def update(trainer: Any, batch: dict[str, torch.Tensor]) -> dict[str, float]:
    """Return the seconds of the phases of one update; the second one is measured."""
    ids, mask = (torch.cat([batch[f"prompt_{name}"], batch[f"completion_{name}"]], 1) for name in ("ids", "mask"))
    keep, rows = batch["completion_ids"].size(1), len(ids)
    seconds: dict[str, float] = {}
    for _ in range(2):
        trainer.state.global_step += 1
        with torch.no_grad():
            score = lambda: trainer._get_per_token_logps_and_entropies(  # noqa: E731
                trainer.model, ids, mask, keep, batch_size=rows
            )
            (logprobs, *_), seconds["scoring"] = timed(score)
        whole = {**batch, "old_per_token_logps": logprobs, "importance_sampling_ratio": torch.ones_like(logprobs)}
        _, seconds["forward and backward"] = timed(lambda whole=whole: trainer.training_step(trainer.model, whole))
        _, seconds["optimizer"] = timed(trainer.optimizer.step)
        trainer.model.zero_grad()
    return seconds


def syncs_to(url: str, model: Any, *, small: bool) -> dict[str, float]:
    """Return the seconds of each way to send the weights, once it has run before."""
    control = SglangControl(url)
    seconds: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        ways = {"sync, checkpoint": False} if small else {"sync, checkpoint": False, "sync": True}
        for name, handles in ways.items():
            sender = WeightSender(control, Path(folder), handles=handles)
            sender.send(model, "0")
            _, seconds[name] = timed(lambda sender=sender: sender.send(model, "1"))
    return seconds


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; complain of an engine with other weights, and of memory far from the estimate."""
    small = quick or not torch.cuda.is_available()
    rows, turns, scale = (4, 2, 16) if small else (64, 2, 1)
    work = work_of(rows, turns, SHAPES[small]["vocab_size"], scale)
    with TemporaryDirectory() as name, quiet_trl(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*'rollout_func'", UserWarning)
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
    trainer, made = trainer_for(folder, model, len(played))
    trainer.max_logprob_difference = inf if small else MAX_LOGPROB_DIFFERENCE  # the stand-in's logprobs are invented
    phases |= update(trainer, batch_of(played, len(work.openings[0]), model.device))
    table = Table("engine", "ids a second", "of bare SGLang")
    for engine, seconds in (("bare SGLang", plain), ("SGLang by orl", mine), ("in the training process", inside)):
        table.add_row(engine, f"{work.actions / seconds:,.0f}", f"{plain / seconds:.2f}")
    console.print(table)
    table = Table("phase of a step", "seconds", "of sampling")
    for phase, seconds in phases.items():
        table.add_row(phase, f"{seconds:.2f}", f"{seconds / mine:.2f}")
    console.print(table)
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    longest = max(map(len, played))
    sizes = msgspec.structs.replace(sizes_of(made, trainer.args), context=longest)
    estimate = training(shape_of(model.config.to_dict()), sizes).total
    console.print(
        f"{len(played)} conversations of up to {longest} ids; update: peak {peak / GIB:.2f} GiB, estimate "
        f"{estimate / GIB:.2f} GiB"
    )
    return [f"peak memory is {peak / estimate:.2f} of the estimate"] * (peak > 1.15 * estimate)
