"""One run of the embedded trainer: model and engine, TRL's GRPOTrainer, measurements before and after, the files.

TRL owns the optimizer and the loss; orl owns the step and the files. Torch works on the main thread, which serves the
engine while rollouts play on a loop of their own. `engines` opens the engine.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager

import transformers
from datasets import Dataset
from datasets.utils import disable_progress_bars
from orl_core.errors import ConfigError, boundary
from orl_rollout.edge import interrupt
from orl_rollout.logs import say
from orl_rollout.run_folder.checkpoint import lasting_name
from orl_rollout.run_folder.contract import Run
from orl_rollout.run_folder.tracking import tracking
from orl_rollout.runtime.runtime import Runtime
from orl_rollout.runtime.stack import open_runtime
from orl_rollout.tokenizer.pretrained import load_pretrained
from orl_rollout.training.play import Player
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.integrations.integration_utils import TensorBoardCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from orl_trl.engine.engine_plan import EngineChoice, engine_of
from orl_trl.engine.local_model import load_model, on_device, read_config
from orl_trl.engine.lora import lora_config
from orl_trl.engine.open_engine import EngineFor, open_engine
from orl_trl.options import TOKENS_PER_GPU, own_options
from orl_trl.run_plan.gpu_memory import check_memory
from orl_trl.run_plan.resume import check_start, order_of, start_of
from orl_trl.run_plan.settings import check_settings, grpo_config, updates_per_step
from orl_trl.run_plan.training_plan import plan_of
from orl_trl.training.importance import correct_ratios
from orl_trl.training.rollouts import Rollouts
from orl_trl.training.training_callback import Training
from orl_trl.training.whole_checkpoints import WholeCheckpoints

OpenPlayer = Callable[[Run, str], AbstractAsyncContextManager[Player]]
OpenEngine = Callable[[Run, EngineChoice, PreTrainedConfig], AbstractContextManager[EngineFor]]


def train(run: Run, open_player: OpenPlayer | None = None, open_with: OpenEngine = open_engine) -> None:
    """See `orl_trl.train`. `open_player` and `open_with` open player and engine: those of the run, or a test's.

    What cannot be is refused first. Then SGLang starts, if it is the engine, and the model is loaded meanwhile.
    """
    name, load = check_settings(run.config), run.config.trainer.load
    before, rank = check_start(load), own_options(run.config.trainer).lora_rank
    disable_progress_bars()
    opened = open_player or runtime_of
    with interrupt.listening(), quiet_trl():
        base = before.model if before and rank else name
        config, parameters = read_config(base)
        choice = engine_of(run, parameters)
        say(str(choice))
        settings = grpo_config(run, parameters=parameters)
        check_memory(run, settings, config.to_dict(), choice.memory_share)
        plan = plan_of(run, settings)
        start = start_of(run.config, settings, order_of(settings, list(plan.tasks), rank))
        interrupt.check()
        with tracking(run), open_with(run, choice, config) as engine_for:
            model = load_model(base, frozen=rank is not None)
            transformers.logging.disable_progress_bar()  # of each checkpoint that is written
            interrupt.check()
            engine = engine_for(model)
            with Rollouts(plan, engine, lambda: opened(run, name)) as rollouts:
                template = run.config.chat_template
                trainer = trainer_of(on_device(model), name, settings, rollouts, chat_template=template, lora_rank=rank)
                trainer.micro_batch_tokens = run.config.trainer.max_tokens_per_gpu or TOKENS_PER_GPU
                trainer.max_logprob_difference = run.config.trainer.max_logprob_difference
                trainer.turn_advantages = run.config.turn_advantages
                if start is not None:
                    trainer.start, trainer.begins_with, rollouts.step = start, start.model, start.step
                    say(f"continues {start.folder} after step {start.step}")
                write_tensorboard(trainer, run)
                Training(run, rollouts, updates=updates_per_step(settings)).train(trainer)


def runtime_of(run: Run, model: str) -> AbstractAsyncContextManager[Runtime]:
    """Open the runtime of a run; `model` is the checkpoint whose tokenizer it uses."""
    return open_runtime(run.config, model, run.folder, run.config.trainer.n_samples or 1)


def trainer_of(
    model: PreTrainedModel,
    name: str,
    settings: GRPOConfig,
    rollouts: Rollouts,
    *,
    chat_template: str | None = None,
    lora_rank: int | None = None,
) -> WholeCheckpoints:
    """Make TRL's trainer of `model`, whose tokenizer is that of the checkpoint `name`.

    Checkpoints are saved with the run's own `chat_template`, if it has one. With `lora_rank`, `model` gets adapters.

    Raises:
        ConfigError: TRL refuses the settings, or has nothing to pad with.
    """
    tokenizer = load_pretrained(name)
    tokenizer.padding_side = "left"
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    if tokenizer.pad_token is None and tokenizer.eos_token is None:
        raise ConfigError(f"the tokenizer of `{name}` has neither a `pad_token` nor an `eos_token`: TRL pads with one")
    with boundary(ConfigError, "preparing TRL's trainer"):
        trainer = WholeCheckpoints(
            model=model,
            reward_funcs=[rollouts.reward],
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": list(rollouts.plan.tasks)}),
            processing_class=tokenizer,
            rollout_func=rollouts,
            peft_config=lora_config(lora_rank),
        )
    correct_ratios(trainer)
    trainer.begins_with, trainer.order = lasting_name(name), order_of(settings, list(rollouts.plan.tasks), lora_rank)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def write_tensorboard(trainer: WholeCheckpoints, run: Run) -> None:
    """Let `trainer` write TensorBoard's files to the run's folder, if they are asked for."""
    if run.config.trainer.tensorboard:
        from torch.utils.tensorboard.writer import SummaryWriter

        writer = SummaryWriter(log_dir=str(run.folder / "tensorboard"))
        trainer.add_callback(TensorBoardCallback(writer))


@contextmanager
def quiet_trl() -> Generator[None]:
    """Keep to itself what TRL says of rows without a reward, which are no news here and whose text may be anything.

    TRL 1.16 also asks models for a property that transformers has renamed, and is warned each time.
    """

    def keep(record: logging.LogRecord) -> bool:
        return "All reward functions returned None" not in record.getMessage()

    trl_logger = logging.getLogger(GRPOTrainer.__module__)
    trl_logger.addFilter(keep)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*gradient_checkpointing.* is deprecated", FutureWarning)
            yield
    finally:
        trl_logger.removeFilter(keep)
