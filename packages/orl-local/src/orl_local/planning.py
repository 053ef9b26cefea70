"""The plan of a run: what is decided and refused before weights are loaded, and what a dry run says of it.

A layout is one use of some GPUs. The table of those that are for rent is made of the numbers of `memory`, as the plan
of a run is.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from orl_core.errors import ConfigError
from orl_rollout.edge import interrupt
from orl_rollout.gpus import Gpu, gpu_memory
from orl_rollout.logs import logger_of
from orl_rollout.memory import GIB, MemoryReport, ModelShape, config_of, shape_of
from orl_rollout.recognised_engine import RecognisedEngine
from orl_rollout.run_folder.checkpoint import Checkpoint, is_absent
from orl_rollout.run_folder.contract import Plan, Run, refuse_workers
from orl_rollout.training.course import Schedule, plan_of, schedule_of

from orl_local.checkpoints import check_settings, checkpoint_to_load, order_of
from orl_local.engine.engine_plan import STARTED, EngineChoice, engine_of, split_options
from orl_local.engine.sglang_control import SglangControl
from orl_local.memory import Demand, Need, adapted, demand_of, fitted, held, need_of, report, sizes_of
from orl_local.options import DEFAULTS, LocalOptions, own_options
from orl_local.settings import TINY, Settings, settings_of

COUNTS, SIZES = (1, 2, 4, 8), (24, 48, 80, 141)  # GPUs that are for rent: how many, and of how many GB
GB = 10**9
LORA_RANK = 16
LEGEND = """\
whole: each GPU that trains has all weights; sharded: they share a copy (--sharding)
2+2: two train, two only sample (--num-gpus 4 --rollout-gpus 2); -: too large"""
WEIGHTS = ("*.safetensors", "*.bin")
MIB = 1 << 20
logger = logger_of("orl")


class Layout(Struct, frozen=True, kw_only=True):
    """One use of some GPUs. `ranks` train, `engines` only sample; without these each GPU does both.

    `sharded`: the ranks share one copy of the weights.
    """

    ranks: int
    engines: int
    sharded: bool
    need: Need

    def __str__(self) -> str:
        apart = f"{self.ranks}+{self.engines} " if self.engines else ""
        return "-" if self.need.lacking else f"{apart}{'sharded' if self.sharded else 'whole'}"


def layouts(shape: ModelShape, demand: Demand, engine: EngineChoice, gpus: int, total: int) -> list[Layout]:
    """Return the layouts of `gpus` GPUs of `total` bytes each: those that fit, the best first, then the others.

    Whole weights on one rank of a divided layout stand for whole weights on several.
    """

    def layout(ranks: int, *, sharded: bool) -> Layout:
        choice = structs.replace(engine, engine=engine.kind, apart=ranks < gpus)
        need = need_of(shape, demand, choice, total, ranks if sharded else 1)
        return Layout(ranks=ranks, engines=gpus - ranks, sharded=sharded, need=need)

    places = [(gpus, False), (gpus, True), *((ranks, ranks > 1) for ranks in range(1, gpus))]
    allowed = [
        (ranks, sharded)
        for ranks, sharded in places
        if sharded in demand.sharded and ranks > sharded and not (gpus - ranks or gpus) % engine.each
    ]
    every = [layout(ranks, sharded=sharded) for ranks, sharded in allowed]
    return sorted(every, key=lambda one: one.need.lacking != "")


def best(shape: ModelShape, demand: Demand, engine: EngineChoice, size: int) -> dict[int, Layout]:
    """Return the best layout for each of COUNTS that allows one, of GPUs of `size` GB, whether it fits or not."""
    every = ((count, layouts(shape, demand, engine, count, size * GB)) for count in COUNTS)
    return {count: some[0] for count, some in every if some}


def fewest(layout_of: Mapping[int, Layout]) -> str:
    """Return the least number of GPUs that are enough, and their layout."""
    return next((f"{count}: {layout}" for count, layout in layout_of.items() if not layout.need.lacking), "-")


def table(shape: ModelShape, demand: Demand, engine: EngineChoice) -> str:
    """Return lines that say which layouts fit on GPUs for rent, and how many of these adapters need."""
    columns = [best(shape, demand, engine, size) for size in SIZES]
    rows = {f"{count} GPU{'s' * (count > 1)}": [str(one.get(count, "-")) for one in columns] for count in COUNTS}
    if not demand.sizes.lora_rank:
        smaller = structs.replace(demand.sizes, **adapted(demand.sizes, LORA_RANK))
        other = structs.replace(demand, sizes=smaller)
        rows[f"--lora-rank {LORA_RANK}"] = [fewest(best(shape, other, engine, size)) for size in SIZES]
    rows = {"GPUs for rent": [f"{size} GB" for size in SIZES], **rows}
    lines = (f"{name:<16}" + "".join(f"{cell:>16}" for cell in cells) for name, cells in rows.items())
    return "\n".join((*lines, LEGEND))


class Planned(Struct, frozen=True, kw_only=True):
    """What a run is going to do. `base` is the checkpoint of the weights that are loaded, `described` its config.json.

    `name` is the checkpoint of the tokenizer, and of the weights too, if they are not adapters that continue. It is the
    folder of `start`, which a run continues. `order` is what two runs share.

    `ranks` are the GPUs that train, from 0. `sharded`: they share one copy of weights, gradients and optimizer.

    `shape` is None if orl does not know this kind of model. `releases` says that the engine gives its memory back while
    the trainer works.
    """

    run: Run
    schedule: Schedule
    settings: Settings
    engine: EngineChoice
    name: str
    base: str
    described: Mapping[str, Any]
    shape: ModelShape | None
    gpus: tuple[Gpu, ...]
    ranks: int
    sharded: bool
    releases: bool
    order: Mapping[str, Any]
    start: Checkpoint | None

    def memory(self) -> MemoryReport:
        """Return the estimate of the memory of the run."""
        shards = self.ranks if self.sharded else 1
        return report(self.run.config, self.settings, self.shape, self.gpus, self.engine, shards)

    def for_rent(self) -> str:
        """Return which layouts fit on GPUs for rent; "" if the model is tiny or unknown, or orl starts no engine."""
        config, shape = self.run.config, self.shape
        if shape is None or shape.parameters < TINY or own_options(config.trainer).engine not in ("auto", *STARTED):
            return ""
        return table(shape, demand_of(config, self.settings), self.engine)


def planned(run: Run) -> Planned:
    """Plan a run.

    Raises:
        ConfigError: a setting, the model or the tasks cannot be used.
    """
    config, own = run.config, own_options(run.config.trainer)
    trainer = config.trainer.with_defaults(DEFAULTS)
    name = str(Path(trainer.load).expanduser()) if trainer.load else trainer.model
    if not name:
        raise ConfigError("trainer.model is not set. Give --model: a checkpoint's folder, or a name on a model hub")
    start = checkpoint_to_load(trainer.load)
    base = start.model if start and own.lora_rank else name
    described = _described(base)
    shape = _shape(described)
    parameters = shape.parameters if shape else None
    engines, words = split_options(trainer.own_flags, run.extra)
    settings = settings_of(config, parameters, words)
    every, ranks = gpu_memory(), own.num_gpus - own.rollout_gpus
    engine = _divided(engine_of(own.engine, parameters, engines), own)
    gpus = tuple(sorted(every[:ranks], key=lambda gpu: gpu.free or 0)[:1])  # the fullest of those that train
    settings, shards, gives = fitted(config, settings, shape, gpus, ranks, engine)
    releases = gives and not engine.apart
    if not too_few(own):
        _check_engine(engine, own, releases=releases, sharded=shards > 1)
    if engine.engine == "transformers" or len(engine.gpus) > engine.each:
        refuse_workers(config, str(engine))
    schedule = schedule_of(run, trainer, settings.algorithm.advantage, None)
    filled = structs.replace(config, trainer=trainer)
    order = order_of(filled, settings, schedule.tasks)
    if start:
        check_settings(filled, start, order)
    return Planned(
        run=run,
        schedule=structs.replace(schedule, done=start.step or 0 if start else 0, ahead=own.asynchronous),
        settings=settings,
        engine=engine,
        name=name,
        base=base,
        described=described,
        shape=shape,
        gpus=gpus,
        ranks=ranks,
        sharded=shards > 1,
        releases=releases,
        order=order,
        start=start,
    )


def _divided(engine: EngineChoice, own: LocalOptions) -> EngineChoice:
    """Return the engine with its GPUs, if they are here.

    Raises:
        ConfigError: none of them trains, or the engine cannot be on several.
    """
    count, apart = own.num_gpus, own.rollout_gpus
    if apart >= count:
        raise ConfigError(f"--num-gpus {count} --rollout-gpus {apart}: at least one GPU has to train")
    if count == engine.each == 1 or too_few(own):
        return engine
    if engine.engine == "transformers":
        raise ConfigError(f"--num-gpus {count} needs SGLang or vLLM, but {engine}")
    if engine.url and apart:
        raise ConfigError(f"--rollout-gpus {apart}: orl starts no engine, because {engine.reason}. Leave it out")
    served = range(count - apart, count) if apart else range(count)
    if len(served) % engine.each:
        raise ConfigError(
            f"{engine.control.NAME} takes {engine.each} GPUs, and {len(served)} sample. "
            f"Give --num-gpus or --rollout-gpus a multiple of it, or set -- --{engine.engine}-tensor-parallel-size"
        )
    return structs.replace(engine, gpus=(0,) if engine.url else tuple(served), apart=apart > 0)


def _check_engine(engine: EngineChoice, own: LocalOptions, *, releases: bool, sharded: bool) -> None:
    """Refuse an engine of several GPUs that each train all weights, and rollouts during an update without room."""
    if engine.each > 1 and not engine.apart and not sharded:
        # Only the rank that sends weights frees what torch has cached, and this engine is on GPUs of others, too.
        raise ConfigError(
            f"{engine.control.NAME} takes {engine.each} GPUs, and each trains all weights: let it take one, or "
            "give --rollout-gpus or --sharding fsdp"
        )
    if own.asynchronous and engine.engine == "transformers":
        raise ConfigError(f"--async needs SGLang or vLLM, which plays while this process trains, but {engine}")
    if own.asynchronous and releases and not engine.url:
        raise ConfigError(
            "--async needs memory for rollouts and training at once, and the estimate finds no room. Lower "
            f"--max-context-len or -- {engine.share_option}, train adapters (--lora-rank 32), or leave it out"
        )


def check(plan: Planned) -> None:
    """Refuse a run whose engine is away, or that cannot fit on the GPU; warn of one that may outgrow it.

    Raises:
        ConfigError: it cannot begin.
    """
    estimate = plan.memory()
    for problem in filter(None, (unready(plan), *estimate.problems)):
        raise ConfigError(problem)
    for note in estimate.notes:
        logger.warning("%s", note)


def unready(plan: Planned) -> str:
    """Return what is missing: GPUs here, or a ready SGLang at the address of the user; "" if nothing is."""
    url, few = plan.engine.url, too_few(own_options(plan.run.config.trainer))
    return few or (interrupt.run(_fault_at(url)) if url else "")


async def _fault_at(url: str) -> str:
    if not await SglangControl(url).healthy():
        return f"trainer.local.engine {url}: no SGLang is ready there. Start it, or give another address"
    async with RecognisedEngine(url, context_tokens=1) as engine:
        owner = await engine.owner()
    return (
        f"trainer.local.engine {url}: a vLLM is there, and orl sends weights only to an SGLang. Start one"
        if owner == "vllm"
        else ""
    )


def too_few(own: LocalOptions) -> str:
    """Return that this machine has fewer GPUs than the run takes; "" if it has them. One may be the CPU."""
    here = len(gpu_memory())
    return f"--num-gpus {own.num_gpus}: this machine has {here} GPUs" if own.num_gpus > max(1, here) else ""


def plan_run(run: Run) -> Plan:
    """See `orl_local.plan`."""
    plan = planned(run)
    trainer, settings, start = plan.schedule.trainer, plan.settings, plan.start
    flags = " ".join((*(f"{name}={value}" for name, value in trainer.own_flags.items()), *run.extra))
    what = f"LoRA adapters of rank {settings.lora_rank}" if settings.lora_rank else "all weights"
    kept = "computed again" if settings.recompute else "kept"
    lines = (
        f"would train {plan.base} with local, on {run.task_data}{f': {flags}' if flags else ''}",
        f"continues {plan.name} after step {start.step}" if start else "",
        f"{settings.steps} steps of {trainer.rollout_batch_size} x {trainer.n_samples} rollouts, "
        f"{settings.updates} updates each",
        f"learning rate {settings.lr:g}" if trainer.lr or plan.shape else "",
        str(plan.engine),
        f"trains {what} with {settings.optimizer}, in micro-batches of {settings.tokens} ids; activations are {kept}"
        f"{f', weights shared by {plan.ranks} GPUs (fsdp)' if plan.sharded else ''}",
    )
    unseen = "" if plan.described else f"not checked: the model {plan.base}, which is not on this machine yet"
    memory = disk = MemoryReport()
    if plan.described:
        memory, disk = plan.memory(), disk_report(plan)
    lacking = unready(plan)
    rent = plan.for_rent() if lacking or memory.problems or memory.notes or not plan.gpus else ""
    problems, notes = (lacking, *memory.problems), (unseen, *memory.notes, *disk.notes)
    tables = "\n".join(filter(None, (memory.table if plan.gpus or not rent else "", rent, disk.table)))
    return structs.replace(plan_of(run, lines, str(plan.engine), problems, notes), memory=tables)


def disk_report(plan: Planned) -> MemoryReport:
    """Return one line on the disk for checkpoints, and a note if it does not suffice.

    The older one of those that are kept goes after the newer one is whole, so there is one more while it is written.
    """
    if plan.shape is None:  # the estimate of memory says it
        return MemoryReport()
    size = held(plan.shape, sizes_of(plan.run.config, plan.settings)).total
    saves = math.ceil(plan.settings.steps / (plan.schedule.trainer.save_interval or 1))
    kept = min(own_options(plan.run.config.trainer).save_total_limit, saves)
    needed = (kept + 1) * size
    folder = plan.run.folder.absolute()
    free = shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
    line = f"checkpoints need {_told(needed)} of disk: {kept} kept and one more, {_told(size)} each"
    note = f"{line}; the disk of {plan.run.folder} has {_told(free)} free. Make room, or lower --save-total-limit"
    return MemoryReport(table=f"{line}; {_told(free)} are free", notes=(note,) if needed > free else ())


def _described(name: str) -> Mapping[str, Any]:
    """Return the config.json of the checkpoint `name`; {} of a hub's name that is not on this machine.

    Raises:
        ConfigError: it names a folder, and no checkpoint is in it.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        if is_absent(name):
            raise ConfigError(f"trainer.model {name}: no such folder. Give --model a checkpoint's folder")
        with suppress(ConfigError):
            return config_of(name)
        return {}
    if not any(file for pattern in WEIGHTS for file in folder.glob(pattern)):
        raise ConfigError(f"trainer.model {name}: no weights ({', '.join(WEIGHTS)}) are in it")
    return config_of(str(folder))


def _shape(described: Mapping[str, Any]) -> ModelShape | None:
    with suppress(ConfigError):
        return shape_of(described)
    return None


def _told(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"
