"""The warm start: the tiny model learns the form of play, and little of the skill, from scripted games.

It must not know the reinforcement learning that follows. TRL's SFTTrainer runs over rendered games, with a loss on the
assistant's actions alone. A curriculum plays most games well at first, so that the model learns to find the middle of a
range, and hardly any at last, so that the better way stays rare. A constant small share of good games teaches nothing.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM
    from trl.trainer.sft_config import SFTConfig

    Row = dict[str, list[int]]

# Part of the cache's key: raise it when anything that shapes the checkpoint changes.
RECIPE = 1
ENVIRONMENT = "guessnumber"
# The games of each player; the curriculum draws from them.
GAMES = 2000
IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """The plan of the training: its length, its rate, and the share of well played games over its steps."""

    steps: int = 600
    batch: int = 16
    learning_rate: float = 3e-3
    well_first: float = 0.7
    well_last: float = 0.1
    anneal_from: float = 0.78
    anneal_to: float = 0.83

    def well(self, progress: float) -> float:
        """The share of well played games at `progress` in [0, 1]."""
        done = (progress - self.anneal_from) / (self.anneal_to - self.anneal_from)
        return self.well_first + (self.well_last - self.well_first) * min(1.0, max(0.0, done))


def ensure(
    environment: str,
    cache_dir: Path,
    seed: int,
    *,
    curriculum: Curriculum | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """The folder of a warm-started checkpoint (model, tokenizer, template, warm_start.json), made if it is missing.

    The folder's name is a key of all inputs, and it appears whole or not at all. `progress(step, steps)` is told after
    each step. Raises ValueError for an environment without scripted players.
    """
    plan = curriculum or Curriculum()
    inputs = _inputs(environment, seed, plan)
    finished = cache_dir / _name(inputs)
    if finished.is_dir():
        return finished
    cache_dir.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=cache_dir))
    try:
        _make(unfinished, inputs, plan, seed, progress)
        unfinished.rename(finished)
    except OSError:
        # Another process that made the same one may have been faster; its folder is as good.
        if not finished.is_dir():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return finished


def checkpoint_folder(environment: str, cache_dir: Path, seed: int) -> Path:
    """Return the folder where `ensure` keeps the checkpoint; it exists only when complete."""
    return cache_dir / _name(_inputs(environment, seed, Curriculum()))


def _inputs(environment: str, seed: int, plan: Curriculum) -> dict[str, Any]:
    if environment != ENVIRONMENT:
        raise ValueError(f"no scripted players for {environment!r}: only {ENVIRONMENT} has a warm start")
    return {"recipe": RECIPE, "environment": environment, "seed": seed, "curriculum": asdict(plan)}


def _name(inputs: dict[str, Any]) -> str:
    from orl_playground.players import tools

    # A model that was made for other words about the tools would read these as single bytes.
    key = hashlib.sha256(json.dumps([inputs, tools()], sort_keys=True).encode()).hexdigest()[:12]
    return f"{inputs['environment']}-{inputs['seed']}-{key}"


def _make(
    folder: Path,
    inputs: dict[str, Any],
    plan: Curriculum,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Play, train and save into `folder`."""
    from transformers.utils.logging import disable_progress_bar

    from orl_playground.model import build_model

    started = time.monotonic()
    tokenizer, well, badly = rendered_games(seed)
    model = build_model(tokenizer, seed)
    _train(model, tokenizer, _in_order(well, badly, plan, seed), plan, progress)
    disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {
        **inputs,
        "steps": plan.steps,
        "seconds": round(time.monotonic() - started, 1),
        "params": model.num_parameters(),
        "versions": {name: version(name) for name in ("torch", "transformers", "trl")},
    }
    (folder / "warm_start.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def rendered_games(seed: int, games: int = GAMES) -> tuple[PreTrainedTokenizerFast, list[Row], list[Row]]:
    """The tokenizer made for the games, and the rows (`input_ids`, `labels`) of those played well and badly."""
    from orl_playground.players import END, MIDDLE, end, middle, play, tools
    from orl_playground.tokenizer import build_tokenizer

    rng = random.Random(seed)  # noqa: S311 - games need repeatable chance
    played = [play(MIDDLE, middle, rng) for _ in range(games)] + [play(END, end, rng) for _ in range(games)]
    # Rendering needs a tokenizer for its template, and the vocabulary needs what was rendered.
    texts = cast("list[str]", build_tokenizer([]).apply_chat_template(played, tools=tools(), tokenize=False))
    tokenizer = build_tokenizer(texts[::10])
    encoded = cast("list[list[int]]", tokenizer(texts)["input_ids"])
    rows = [row(ids, tokenizer) for ids in encoded]
    return tokenizer, rows[:games], rows[games:]


def row(ids: list[int], tokenizer: PreTrainedTokenizerFast) -> Row:
    """A row whose labels are the assistant's actions, each with the `<|im_end|>` that closes it."""
    opening = tokenizer.encode("<|im_start|>assistant\n")
    labels = [IGNORED] * len(ids)
    inside = False
    for index, token in enumerate(ids):
        if inside:
            labels[index] = token
            inside = token != tokenizer.eos_token_id
        elif token == opening[-1]:
            inside = ids[index + 1 - len(opening) : index + 1] == opening
    return {"input_ids": ids, "labels": labels}


def _in_order(well: list[Row], badly: list[Row], plan: Curriculum, seed: int) -> list[Row]:
    """The curriculum: for every place in the training a game, well or badly played."""
    rng = random.Random(seed)  # noqa: S311 - games need repeatable chance
    total = plan.steps * plan.batch
    return [rng.choice(well if rng.random() < plan.well(place / total) else badly) for place in range(total)]


def _train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    rows: list[Row],
    plan: Curriculum,
    progress: Callable[[int, int], None] | None,
) -> None:
    """One pass of TRL's SFTTrainer over `rows`, in their order, on the CPU."""
    import torch
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl.trainer.sft_trainer import SFTTrainer

    class Steps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if progress is not None:
                progress(state.global_step, plan.steps)

    with tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=model,
            args=_settings(plan, scratch),
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            callbacks=[Steps()],
        )
        trainer.remove_callback(PrinterCallback)
        threads = torch.get_num_threads()
        # So small a model gains little from a second thread, and waits for it where other work shares the cores.
        torch.set_num_threads(1)
        try:
            trainer.train()
        finally:
            torch.set_num_threads(threads)


def _settings(plan: Curriculum, scratch: str) -> SFTConfig:
    """Return the settings of a training on the CPU that leaves nothing behind."""
    from trl.trainer.sft_config import SFTConfig

    names = {field.name for field in fields(SFTConfig)}  # transformers 5.2x renamed it
    name = "activation_checkpointing" if "activation_checkpointing" in names else "gradient_checkpointing"
    checkpointing: dict[str, Any] = {name: False}
    return SFTConfig(
        output_dir=scratch,
        max_steps=plan.steps,
        per_device_train_batch_size=plan.batch,
        learning_rate=plan.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=min(20, plan.steps),
        adam_beta2=0.99,
        weight_decay=0.0,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
        max_length=None,
        use_cpu=True,
        bf16=False,
        fp16=False,
        **checkpointing,
        dataloader_pin_memory=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
