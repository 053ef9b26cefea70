"""Open the engine that a run has chosen: an SGLang on the same GPU, or the one at an address."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from orl_core.config.limits import context_tokens_of
from orl_rollout.edge import interrupt
from orl_rollout.engine_connection import Timeouts
from orl_rollout.run_folder.contract import Run

from orl_local.engine.engine_plan import EngineChoice, graph_options
from orl_local.engine.served_engine import ServedEngine, Server, Worker
from orl_local.engine.sglang_control import SglangControl
from orl_local.engine.sglang_process import START_SECONDS, Launch, SglangProcess, environment_for


def unready(url: str) -> str:
    """Return what is wrong with the SGLang at the address `url`; "" if it is ready, or if there is no address."""
    if not url or interrupt.run(SglangControl(url).healthy()):
        return ""
    return f"trainer.local.engine {url}: no SGLang is ready there. Start it, or give another address"


@contextmanager
def open_engine(
    run: Run, choice: EngineChoice, model: str, config: Mapping[str, Any], rank: Worker, *, releases: bool
) -> Generator[ServedEngine]:
    """Start the SGLang of a run, if it is not at an address, and yield its engine, which is to be entered.

    `model` is the checkpoint, with this config.json. The memory of the GPU that SGLang takes is a share of what is free
    when it starts, so load the model on the CPU before. `releases` lets it give memory back while the trainer works.
    """
    context = _context_of(run, config)
    with TemporaryDirectory(prefix="weights-", dir=run.folder.absolute(), ignore_cleanup_errors=True) as folder:
        if choice.url:
            patience = Timeouts(retry=run.config.rollout.patience)
            server = Server(url=choice.url, context_tokens=context, folder=Path(folder), timeouts=patience)
            yield ServedEngine(rank, server)
            return
        launch = Launch(
            model=model,
            context_tokens=context,
            seed=run.config.trainer.seed,
            memory_saver=releases and find_spec("torch_memory_saver") is not None,
            extra=(*graph_options(run, choice.options), *choice.options),
        )
        with started(run, launch, Path(folder), rank) as engine:
            yield engine


@contextmanager
def started(run: Run, launch: Launch, folder: Path, rank: Worker) -> Generator[ServedEngine]:
    """Start the SGLang `launch`, which ends with the block. It gets checkpoints through `folder`."""
    with SglangProcess(launch, run.folder, environment_for(run.config)) as process:
        # A first start takes longer than the absence of an engine that runs.
        timeouts = Timeouts(retry=max(run.config.rollout.patience, START_SECONDS), first=START_SECONDS)
        server = Server(
            url=process.url,
            context_tokens=launch.context_tokens,
            folder=folder,
            releases=launch.memory_saver,
            handles=True,
            exact=True,
            timeouts=timeouts,
        )
        yield ServedEngine(rank, server, process)


def _context_of(run: Run, config: Mapping[str, Any]) -> int:
    """Return the ids of the context. SGLang does not start with more than the model was made for."""
    text: Mapping[str, Any] = config.get("text_config") or config
    most = text.get("max_position_embeddings")
    return min(context_tokens_of(run.config), most or context_tokens_of(run.config))
