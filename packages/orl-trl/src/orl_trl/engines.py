"""Open the engine that a run has chosen: the model itself, an SGLang beside it, or the one at an address.

A child's log and, where shared memory is small, its weights are in the run's folder.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from ipaddress import ip_address
from urllib.parse import urlsplit

from orl_core.config import RunConfig
from orl_core.config.limits import context_tokens_of
from orl_core.errors import ConfigError
from orl_rollout.run_folder.contract import Run
from transformers import PreTrainedModel

from orl_trl.engine import InProcessEngine
from orl_trl.engine_choice import Choice, choose_engine, this_machine
from orl_trl.options import own_options
from orl_trl.rollouts import BatchEngine
from orl_trl.served_engine import Child, ServedEngine, Server
from orl_trl.sglang_control import SglangControl
from orl_trl.sglang_options import PREFIX, options_of
from orl_trl.sglang_process import MEMORY_SHARE, SHARE, Launch, SglangProcess, environment_for
from orl_trl.weight_sync import CudaIpcSync, FirstThatWorks, SharedMemorySync, named_as_saved, room_for


def engine_of(run: Run, parameters: int | None) -> Choice:
    """Choose the engine of a run on this machine.

    Raises:
        ConfigError: SGLang is wanted and cannot run here, or it has options and is not started.
    """
    choice = choose_engine(own_options(run.config.trainer).engine, parameters, this_machine())
    options = options_of(run.config.trainer.own_flags, run.extra).sglang
    if options and choice.engine != "sglang":
        option = options[0].replace("--", PREFIX, 1)
        raise ConfigError(f"{option} is for an SGLang that trl starts, but {choice}. Leave it out")
    return choice


def share_of(run: Run, choice: Choice) -> float | None:
    """Return the share of the GPU that the engine takes beside training; None where the model itself is the engine."""
    if choice.engine != "sglang":
        return None if choice.engine == "transformers" else 0.0
    words = iter(options_of(run.config.trainer.own_flags, run.extra).sglang)
    given = [word.partition("=")[2] or next(words, "") for word in words if word.startswith(MEMORY_SHARE)]
    try:
        return float(given[-1]) if given else SHARE
    except ValueError:
        return SHARE  # SGLang refuses it in its own words


def unready(url: str) -> str:
    """Return what is wrong with the SGLang at the address `url`; "" if it is ready, or if there is no address."""
    if not url or SglangControl(url).healthy():
        return ""
    return f"trainer.trl.engine {url}: no SGLang is ready there. Start it, or give another address"


@contextmanager
def open_engine(run: Run, model: PreTrainedModel, choice: Choice) -> Generator[BatchEngine]:
    """Open the engine `choice` of a run, which samples for `model`.

    Raises:
        EngineError: SGLang does not start, or does not answer.
    """
    if choice.engine == "transformers":
        yield InProcessEngine(model)
    elif choice.engine == "sglang":
        with started(run, model, launch_of(run, model)) as engine:
            yield engine
    else:
        with reached(run, model, choice.url) as engine:
            yield engine


def launch_of(run: Run, model: PreTrainedModel) -> Launch:
    """Return the SGLang to start for a run of `model`, from the checkpoint that it was loaded from."""
    config = run.config
    return Launch(
        model=str(model.name_or_path),
        context_tokens=_context_of(config, model),
        seed=config.trainer.seed,
        memory_saver=find_spec("torch_memory_saver") is not None,
        extra=options_of(config.trainer.own_flags, run.extra).sglang,
    )


@contextmanager
def started(run: Run, model: PreTrainedModel, launch: Launch) -> Generator[ServedEngine]:
    """Start the SGLang `launch`, which ends with the block.

    Raises:
        EngineError: it does not start.
    """
    process = SglangProcess(launch, run.folder, environment_for(run.config))
    control = SglangControl(process.url)
    with SharedMemorySync(control, room_for(model, run.folder.absolute())) as shared, process:
        by_handle = model.device.type == "cuda" and named_as_saved(model)
        sync = FirstThatWorks(CudaIpcSync(control), shared) if by_handle else shared
        server = Server(
            url=process.url,
            context_tokens=launch.context_tokens,
            releases=launch.memory_saver,
            exact=True,
            patience=run.config.rollout.patience,
        )
        yield ServedEngine(model, server, sync, Child(process, shared))


@contextmanager
def reached(run: Run, model: PreTrainedModel, url: str) -> Generator[ServedEngine]:
    """Use the SGLang at `url`. Weights go through shared memory to this machine, else through the run's folder.

    Raises:
        ConfigError: it does not answer.
    """
    if problem := unready(url):
        raise ConfigError(problem)
    control = SglangControl(url)
    folder = run.folder.absolute()
    with SharedMemorySync(control, room_for(model, folder) if _is_here(url) else folder) as shared:
        context = _context_of(run.config, model)
        server = Server(url=url, context_tokens=context, patience=run.config.rollout.patience)
        yield ServedEngine(model, server, shared)


def _context_of(config: RunConfig, model: PreTrainedModel) -> int:
    """Return the ids of the context. SGLang does not start with more than the model was made for."""
    made_for: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(context_tokens_of(config), made_for or context_tokens_of(config))


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
