"""A run's folder as a trainer leaves it, made up: 30 steps of GuessNumber with a curve, a journal and a tokenizer."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import msgspec
from orl_core.config import decode_config
from orl_core.messages import Action, TextBlock, ToolCall, ToolResult
from orl_core.task import Task
from orl_core.trajectory import Generation, RolloutSpec, StopReason, Trajectory, Turn
from orl_rollout.episodes.journal import Entry, encode_entry, frame
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

ENVIRONMENT = "playground/GuessNumber"
JOURNAL = "journal-20260101T000000Z-1-0000.jsonl.zst"
CONTROLS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")


def make_tokenizer() -> Tokenizer:
    """A tokenizer of single bytes, so that every character beyond ASCII takes several ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in CONTROLS])
    return tokenizer


def make_turn(
    tokenizer: Tokenizer, shown: str, call: ToolCall, answer: str, *, reward: float, finished: bool = False
) -> Turn:
    """One turn in which the model writes `call` and the environment answers it."""
    written = json.dumps({"name": call.name, "arguments": call.arguments})
    ids = tuple(tokenizer.encode(f"<tool_call>\n{written}\n</tool_call><|im_end|>").ids)
    rng = random.Random(answer)
    logprobs = tuple(-rng.expovariate(4.0 if place % 9 else 0.8) for place in range(len(ids)))
    return Turn(
        observation=tuple(tokenizer.encode(shown).ids),
        generations=(Generation(token_ids=ids, logprobs=logprobs, finish_reason="stop", seconds=0.021),),
        action=Action(calls=(call,)),
        results=(
            ToolResult(
                name=call.name, content=(TextBlock(text=answer),), reward=reward, finished=finished, seconds=0.003
            ),
        ),
    )


def make_trajectory(
    tokenizer: Tokenizer, key: str, *, won: bool, index: int = 7, evaluation: bool = True, prompt: str = ""
) -> Trajectory:
    """Two guesses, the second of which hits where `won`."""
    prompt = prompt or "Find the number I picked from 14 to 25. Guesses left: 4"
    opening = f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"
    second = "<|im_start|>tool\nhigher: 20 to 25<|im_end|>\n<|im_start|>assistant\n"
    last = "correct" if won else "out of guesses: it was 22"
    turns = (
        make_turn(tokenizer, opening, ToolCall(name="guess", arguments={"number": 19}), "higher: 20 to 25", reward=0.0),
        make_turn(
            tokenizer,
            second,
            ToolCall(name="guess", arguments={"number": 22 if won else 15}),
            last,
            reward=float(won),
            finished=True,
        ),
    )
    task = Task(env_name=ENVIRONMENT, deployment_name=ENVIRONMENT, split="test", index=index)
    job = RolloutSpec(task=task, rollout_id=key, evaluation=evaluation)
    return Trajectory(job=job, turns=turns, stop_reason=StopReason.FINISHED, seconds=0.11)


def make_metrics(step: int, share: float, rng: random.Random) -> dict[str, float]:
    """Metrics as `metrics_of` names them."""
    noisy = min(1.0, max(0.0, rng.gauss(share, 0.04)))
    return {
        f"{ENVIRONMENT}/{name}": value
        for name, value in {
            "rollouts": 128.0,
            "reward": noisy,
            "success": noisy,
            "turns": 3.6 - 0.8 * noisy,
            "valid_calls": 0.985 + 0.01 * rng.random(),
            "stop/finished": 1.0,
            "generation_seconds": 40.0 + step / 10,
        }.items()
    }


def make_run(folder: Path, *, steps: int = 30, finished: bool = True, prompt: str = "") -> Path:
    """Write the files of a run into `folder`, `report.html` left out."""
    folder.mkdir(parents=True)
    trainer = {"backend": "local", "model": ENVIRONMENT, "lr": 4e-4, "n_samples": 16, "num_rollout": steps}
    config = decode_config({"environments": {ENVIRONMENT: {"eval_splits": ["test"]}}, "trainer": trainer}, "test")
    (folder / "config.json").write_bytes(msgspec.json.encode(config.public()))
    rng = random.Random(0)
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as lines:
        for step in range(steps + 1):
            share = 0.31 + 0.53 * (1 - math.exp(-step / 14))
            kinds = (["eval"] if step in (0, steps // 2, steps) else []) + (["train"] if step else [])
            for kind in kinds:
                point = {"step": step, "kind": kind, "seconds": 4.2, **make_metrics(step, share, rng)}
                lines.write(json.dumps(point) + "\n")
    tokenizer = make_tokenizer()
    with (folder / JOURNAL).open("wb") as journal:
        for step, won in ((0, (False, False, True)), (steps, (False, True, True))):
            for index, hit in enumerate(won):
                trajectory = make_trajectory(tokenizer, f"e{step}-{index}", won=hit, index=index, prompt=prompt)
                entry = Entry(
                    key=trajectory.job.rollout_id,
                    time=0.0,
                    reward=float(hit),
                    success=hit,
                    step=step,
                    trajectory=trajectory,
                )
                journal.write(frame(encode_entry(entry)))
    (folder / "checkpoint").mkdir()
    tokenizer.save(str(folder / "checkpoint" / "tokenizer.json"))
    if finished:
        summary = {
            "env": ENVIRONMENT,
            "model_params": 363_312,
            "steps": steps,
            "success_before": 0.31,
            "success_after": 0.79,
            "seconds_total": 214.0,
            "seconds_warm_start": 61.5,
            "seconds_per_step": 4.2,
            "rollouts": steps * 128,
            "versions": {"torch": "2.9.0", "transformers": "5.12.1"},
        }
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder
