"""Types that the launcher and an adapter exchange. Adapters are entry points of `orl.trainers`, `orl.engines`,
`orl.gateways` and `orl.warm_starts`.

The folder of a run holds, whichever trainer made it:

    config.json       the resolved configuration, secrets left out
    tasks.jsonl       the tasks to train on; eval_tasks.jsonl the held-out tasks; eval_sets/ the same, one file for
                      each environment and split, for a trainer on a cluster; rollout_tasks.jsonl those of `orl rollout`
    environments.json  the version of each environment's server, null if it does not answer
    metrics.jsonl     one JSON object a line: `step`, `kind` ("train", "eval" or "update"), `seconds`, and metrics by
                      name; `seconds` are those of the whole step, or of its rollouts alone if the trainer is on a
                      cluster, whose "update" holds the numbers of training (`metrics_log.py` names them)
    journal-*.jsonl.zst   every trajectory, with its ids; uploads.json says which of them have been uploaded
    unjudged-*.jsonl.zst  a trajectory while the reward function judges it, and for ever if the process ends first
    tokenizer.json    the tokenizer of the ids in the journal, next to it
    trainer.log       the output of a trainer that runs in a process of its own
    engine*.log       the output of each SGLang that orl started
    recoveries.jsonl  the restarts of such a trainer after a lack of GPU memory or the death of an engine
    summary.json      the figures of the whole run; `interrupted: true` from the moment a signal comes
    checkpoint/       the last weights, or a link to their folder; orl_checkpoint.json in it tells their format
    trainer/checkpoint-N/  with local the one before `checkpoint`, after N steps
    checkpoint_hf/    the same in Hugging Face's format, if `orl convert` made it
    report.html       made from the files above
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, TypeVar

from msgspec import Struct, field
from orl_core import ConfigError, Datum, RunConfig, TrainerConfig

from orl_rollout.loop.engine import Engine
from orl_rollout.run_folder.checkpoint import Checkpoint

T = TypeVar("T")
TOKENIZER, CHECKPOINT = "tokenizer.json", "checkpoint"


class Run(Struct, frozen=True, kw_only=True):
    """One training run. `extra` are the words after `--`, for the trainer; `facts` are fields of its Summary.

    `python` is the Python that has the trainer, if it is another one and the user names it.

    `config.environments` are ready to be reached (a `base_url` is filled in where the launcher serves one), and
    `config.trainer.model` is a checkpoint's path or a hub's name. `started` is the monotonic clock when the command
    began, in seconds: work before the trainer starts counts to the run.
    """

    config: RunConfig
    folder: Path
    task_data: Path
    eval_data: Path | None = None
    extra: tuple[str, ...] = ()
    python: str | None = None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    started: float = field(default_factory=time.monotonic)


class Conversion(Struct, frozen=True, kw_only=True):
    """One conversion of a checkpoint: to Megatron's format if it is Hugging Face's, else to Hugging Face's.

    `source` is the folder that holds `checkpoint`, `output` a new folder. `trainer` has the options: `model` is the
    Hugging Face checkpoint that training began with. `extra` are the words after `--`, for the trainer's tool. `python`
    is the Python that has the trainer, if it is another one and the user names it.
    """

    source: Path
    checkpoint: Checkpoint
    output: Path
    trainer: TrainerConfig
    extra: tuple[str, ...] = ()
    python: str | None = None


def refuse_conversion(trainer: str, conversion: Conversion) -> NoReturn:
    """Refuse a conversion: `trainer` reads and writes Hugging Face checkpoints.

    Raises:
        ConfigError: always; says which command converts.
    """
    if conversion.checkpoint.format == "hf":
        raise ConfigError(f"{conversion.source}: {trainer} reads this checkpoint as it is. Name it with --model")
    raise ConfigError(
        f"{trainer} has no tool for {conversion.source}. Name the trainer that wrote it, or one for clusters"
    )


def refuse_workers(config: RunConfig, engine: str) -> None:
    """Refuse `rollout.workers` above 1. `engine` says why other processes do not reach one.

    Raises:
        ConfigError: it is above 1.
    """
    if config.rollout.workers > 1:
        raise ConfigError(
            f"`rollout.workers` is {config.rollout.workers} and needs one server of SGLang or vLLM, but {engine}. "
            "Remove it"
        )


class Plan(Struct, frozen=True, kw_only=True):
    """Plan of a run or a conversion: `command` has the lines to read or to paste into a shell.

    `problems` keep the run from starting on this machine; `notes` are what else its user should know. `memory` is the
    table of the estimate, `engine` the engine of the rollouts with the reason for it; "" if there is none.
    """

    command: str
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    memory: str = ""
    engine: str = ""


class Trainer(Protocol):
    """The entry point of an adapter, a module or an object with these names: `orl.trainers = {local = "orl_local"}`.

    `default_model` is the model of a run that names none, "" if each must name one. `defaults` are those of options in
    `trainer`; one that depends on the run is absent. `sections` are the adapter's own sections of `trainer`: a Struct
    for each name. The command line has an option for each of their fields; trainers with the same section share it.
    `conversion_options` are those of `orl convert`: `SECTION.FIELD`. `packages` are what `orl install-into` installs
    next to the trainer; empty if it runs in orl's own environment.

    Importing the object must not import the trainer, torch or another large library.
    """

    default_model: str
    defaults: Mapping[str, Any]
    sections: Mapping[str, type[Struct]]
    conversion_options: Sequence[str]
    packages: Sequence[str]

    def resolve(self, config: RunConfig, extra: Sequence[str]) -> RunConfig:
        """Return `config` with the limit of the context, if the trainer has one. `extra` are the words after `--`.

        Raises:
            ConfigError: an option of its sections is wrong; one line says why.
        """
        ...

    def train(self, run: Run) -> None:
        """Train to the end, writing the files of the run's folder.

        Raises:
            OrlError: the run cannot start or was ended; one line says why.
        """
        ...

    def plan(self, run: Run) -> Plan:
        """Return what `train` would do. Nothing is written, and the folder need not exist.

        Raises:
            OrlError: the run could not start; one line says why.
        """
        ...

    def convert(self, conversion: Conversion) -> None:
        """Write the checkpoint in the other format, with the trainer's own tool, and the note next to it.

        Raises:
            OrlError: the conversion cannot start or failed; one line says why, and the output is removed.
        """
        ...

    def plan_conversion(self, conversion: Conversion) -> Plan:
        """Return what `convert` would do. Nothing is written.

        Raises:
            OrlError: the trainer has no such conversion, or an option is wrong; one line says why.
        """
        ...


class WarmStart(Struct, frozen=True, kw_only=True):
    """One supervised training of the checkpoint `model`, with a loss on each `loss_mask` alone.

    `order` are places in `rows`, in the order in which they train, `batch_size` at a step. `output` is a new folder
    for the checkpoint, in the dtype of `model`. Its tokenizer gets `chat_template` if it is not None. The learning
    rate `lr` decays to 0.
    """

    model: str
    output: Path
    rows: Sequence[Datum]
    order: Sequence[int]
    batch_size: int
    lr: float
    decay: Literal["linear", "cosine"] = "linear"
    held_out: Sequence[Datum] = ()
    chat_template: str | None = None
    seed: int = 0

    @property
    def steps(self) -> int:
        """Return the number of updates."""
        return len(self.order) // self.batch_size


class WarmStarter(Protocol):
    """The entry point `orl.warm_starts`, a module with these names. Importing it must not import torch."""

    def recipe(self, model: str) -> dict[str, float]:
        """Return `steps`, `batch_size` and `lr` for a model of this size.

        Raises:
            ConfigError: the model cannot be read.
        """
        ...

    def train(self, start: WarmStart, report: Callable[[int, int], None]) -> dict[str, float]:
        """Train. Return `parameters`, `train_loss` of the last steps, and `held_out_loss` if rows are held out.

        `report(step, steps)` is called after each step; it may raise to end the training.

        Raises:
            ConfigError: the model cannot be loaded, or does not fit into memory with such a batch.
        """
        ...


class GatewayAddress(Struct, frozen=True, kw_only=True):
    """Where a gateway listens, and the address of the SGLang behind it. `key` opens it; port 0 takes a free one."""

    engine: str
    key: str
    host: str = "127.0.0.1"
    port: int = 0


class GatewayServer(Protocol):
    """The entry point `orl.gateways`: the gateway alone, for agents with tools of their own."""

    async def __call__(
        self, config: RunConfig, folder: Path, address: GatewayAddress, listens: Callable[[str], None], /
    ) -> None:
        """Serve sessions until cancelled, and journal them in `folder`. `listens` gets the URL when it does.

        `config` holds one environment, whose limits are those of a session.

        Raises:
            OrlError: the tokenizer cannot be used, the port cannot be bound, or nothing can be recorded any more.
        """
        ...


class LocalEngine(Protocol):
    """The entry point `orl.engines` of a package that runs a model in this process."""

    def __call__(self, model: str, play: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
        """Load the checkpoint `model`, answer `play`'s requests on this thread, and return its result.

        `play` runs on an event loop of its own, on another thread.

        Raises:
            ConfigError: the model cannot be loaded.
        """
        ...
