"""Plan of a run with TRL: refuse everything that `train` would refuse, without weights and without a rollout."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_rollout.edge.secrets import PLATFORM_KEY, api_key, unset_in
from orl_rollout.gpus import gpu_memory
from orl_rollout.memory.estimate import MemoryReport
from orl_rollout.memory.model import config_of
from orl_rollout.results.reward_function import load_reward
from orl_rollout.run_folder.checkpoint import is_absent
from orl_rollout.run_folder.contract import Plan, Run
from orl_rollout.run_folder.tracking import tracked_by
from orl_rollout.runtime.player import load_player

from orl_trl.engine.engine_plan import engine_of
from orl_trl.engine.local_model import TINY, read_config
from orl_trl.engine.open_engine import unready
from orl_trl.options import TOKENS_PER_GPU, own_options
from orl_trl.run_plan.disk import disk_report
from orl_trl.run_plan.gpu_memory import report
from orl_trl.run_plan.resume import check_start, order_of, start_of
from orl_trl.run_plan.settings import check_settings, grpo_config, optimizer_of, updates_per_step
from orl_trl.run_plan.training_plan import plan_of

WEIGHTS = ("*.safetensors", "*.bin")


def plan_run(run: Run) -> Plan:
    """See `orl_trl.plan`."""
    trainer = run.config.trainer
    model, rank = check_settings(run.config), own_options(trainer).lora_rank
    check_start(trainer.load)
    load_reward(run.config)
    load_player(run.config)
    parameters = parameters_of(model)
    engine = engine_of(run, parameters)
    settings = grpo_config(run, parameters=parameters or TINY)
    tasks: list[str] = []
    if run.task_data.is_file():  # a plan prepares none
        tasks = list(plan_of(structs.replace(run, eval_data=None), settings).tasks)
    start = start_of(run.config, settings, order_of(settings, tasks, rank))
    steps = settings.max_steps // updates_per_step(settings)
    groups = (settings.generation_batch_size or 0) // (settings.num_generations or 1)
    flags = " ".join((*(f"{name}={value}" for name, value in trainer.own_flags.items()), *run.extra))
    ids = trainer.max_tokens_per_gpu or TOKENS_PER_GPU
    what = f"LoRA adapters of rank {rank}" if rank else "all weights"
    lines = (
        f"would train {model} with trl, in this process, on {run.task_data}{f': {flags}' if flags else ''}",
        f"continues {start.folder} after step {start.step}" if start else "",
        f"{steps} steps of {groups} x {settings.num_generations} rollouts, {updates_per_step(settings)} updates each",
        f"learning rate {settings.learning_rate:g}" if trainer.lr or parameters else "",
        str(engine),
        f"trains {what} with {optimizer_of(settings)}, in micro-batches of {ids} ids",
    )
    unseen = "" if parameters else f"not checked: the model {model}, which is not on this machine yet"
    try:
        config = config_of(model)
    except ConfigError as unknown:
        memory, disk = MemoryReport(table=f"memory is not estimated: {unknown}"), MemoryReport()
    else:
        memory = report(run, settings, config, gpu_memory(), engine.memory_share)
        disk = disk_report(run, settings, config)
    notes = (tracked_by(trainer).note, unseen, *unset_in(run.config), *memory.notes, *disk.notes)
    return Plan(
        command="\n".join(filter(None, lines)),
        problems=tuple(filter(None, (unready(engine.url), _missing_key(run.config), *memory.problems))),
        notes=tuple(filter(None, notes)),
        memory="\n".join(filter(None, (memory.table, disk.table))),
        engine=str(engine),
    )


def parameters_of(model: str) -> int | None:
    """Count the parameters of the checkpoint in the folder `model`, whose weights are not read; None of a hub's name.

    Raises:
        ConfigError: there is no such folder, or no checkpoint of a causal language model is in it.
    """
    folder = Path(model)
    if not folder.is_dir():
        if is_absent(model):
            raise ConfigError(f"trainer.model {model}: no such folder. Give --model a checkpoint's folder")
        return None
    if not any(file for pattern in WEIGHTS for file in folder.glob(pattern)):
        raise ConfigError(f"trainer.model {model}: no weights ({', '.join(WEIGHTS)}) are in it")
    return read_config(model)[1]


def _missing_key(config: RunConfig) -> str:
    """Name the key that an environment needs and this process does not have."""
    needed = any(one.base_url is None or one.send_api_key for one in config.environments.values())
    return f"not set in the environment: {PLATFORM_KEY}" if needed and not api_key() else ""
