"""Open the engine that a run has chosen: the model itself, an SGLang on the same GPU, or the one at an address."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from orl_core.config.limits import context_tokens_of
from orl_core.errors import ConfigError
from orl_rollout.run_folder.contract import Run
from orl_rollout.sglang.client import Timeouts
from transformers import PreTrainedConfig, PreTrainedModel

from orl_trl.engine.batch_engine import BatchEngine
from orl_trl.engine.engine_plan import EngineChoice, graph_options
from orl_trl.engine.in_process_engine import InProcessEngine
from orl_trl.engine.served_engine import ServedEngine, Server
from orl_trl.engine.sglang_control import SglangControl
from orl_trl.engine.sglang_process import START_SECONDS, Launch, SglangProcess, environment_for
from orl_trl.engine.weights import WeightSender, named_as_saved

EngineFor = Callable[[PreTrainedModel], BatchEngine]


def unready(url: str) -> str:
    """Return what is wrong with the SGLang at the address `url`; "" if it is ready, or if there is no address."""
    if not url or SglangControl(url).healthy():
        return ""
    return f"trainer.trl.engine {url}: no SGLang is ready there. Start it, or give another address"


@contextmanager
def open_engine(run: Run, choice: EngineChoice, config: PreTrainedConfig) -> Generator[EngineFor]:
    """Open the engine `choice` of a run, for the model with this config.json, which need not be loaded yet.

    The block gets a function that waits until the engine is ready, and returns it for the loaded model. The memory of
    the GPU that SGLang takes is a share of what is free when it starts, so load the model on the CPU before.

    Raises:
        ConfigError: the SGLang at the address does not answer.
        EngineError: SGLang does not start.
    """
    if choice.engine == "transformers":
        yield InProcessEngine
    elif not choice.url:
        with started(run, launch_of(run, config, choice.options)) as engine_for:
            yield engine_for
    elif problem := unready(choice.url):
        raise ConfigError(problem)
    else:
        patience = Timeouts(retry=run.config.rollout.patience)
        server = Server(url=choice.url, context_tokens=_context_of(run, config), timeouts=patience)
        with _weights_folder(run) as folder:
            yield lambda model: ServedEngine(model, server, WeightSender(SglangControl(choice.url), folder))


def launch_of(run: Run, config: PreTrainedConfig, options: tuple[str, ...]) -> Launch:
    """Return the SGLang to start for a run of the model with this config.json."""
    return Launch(
        model=str(config.name_or_path),
        context_tokens=_context_of(run, config),
        seed=run.config.trainer.seed,
        memory_saver=find_spec("torch_memory_saver") is not None,
        extra=(*graph_options(run, options), *options),
    )


@contextmanager
def started(run: Run, launch: Launch) -> Generator[Callable[[PreTrainedModel], ServedEngine]]:
    """Start the SGLang `launch`, which ends with the block."""
    with SglangProcess(launch, run.folder, environment_for(run.config)) as process, _weights_folder(run) as folder:
        # A first start takes longer than the absence of an engine that runs.
        timeouts = Timeouts(retry=max(run.config.rollout.patience, START_SECONDS), first=START_SECONDS)
        server = Server(
            url=process.url,
            context_tokens=launch.context_tokens,
            releases=launch.memory_saver,
            exact=True,
            timeouts=timeouts,
        )

        def engine_for(model: PreTrainedModel) -> ServedEngine:
            process.wait()
            handles = torch.cuda.is_available() and named_as_saved(model)
            sender = WeightSender(SglangControl(process.url), folder, handles=handles)
            return ServedEngine(model, server, sender, process)

        yield engine_for


@contextmanager
def _weights_folder(run: Run) -> Generator[Path]:
    """Make the folder through which an engine gets weights, and remove it with the block."""
    with TemporaryDirectory(prefix="weights-", dir=run.folder.absolute(), ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _context_of(run: Run, config: PreTrainedConfig) -> int:
    """Return the ids of the context. SGLang does not start with more than the model was made for."""
    most: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min(context_tokens_of(run.config), most or context_tokens_of(run.config))
