"""Episodes of the tests: GuessNumber on a real OpenReward server, against a scripted model behind a stand-in.

The model is a pure function of the ids that it is shown. A new episode wins or gives up by turns: it halves the range,
which hits the secret of these tasks in two turns, or says nothing of use twice.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from orl_core.task import Task, row_of
from orl_rollout.tokenizer.tokenizer import HFTokenizer, load_tokenizer

from tests.kit.tokenizers import build, template

GIVES_UP = "I give up."


def make_checkpoint(folder: Path) -> Path:
    """A checkpoint's tokenizer alone, which is all that rollouts load."""
    build(template("qwen3")).save_pretrained(str(folder))
    return folder


def make_tasks(path: Path, count: int) -> Path:
    """A tasks.jsonl of `count` tasks whose secret the halving player hits with its second guess."""
    specs = [{"low": low, "high": low + 11, "secret": low + 8} for low in range(1, count + 1)]
    tasks = [
        Task(
            env_name="playground/GuessNumber",
            deployment_name="playground/GuessNumber",
            environment_name="guessnumber",
            index=index,
            task_spec=spec,
        )
        for index, spec in enumerate(specs)
    ]
    import msgspec

    path.write_bytes(b"".join(msgspec.json.encode(row_of(task)) + b"\n" for task in tasks))
    return path


@cache
def tokenizer_in(checkpoint: Path) -> HFTokenizer:
    """Open the tokenizer of `checkpoint` once: compiling its template takes a tenth of a second."""
    return load_tokenizer(checkpoint)


def player(checkpoint: Path, *, thinks: bool = False) -> Callable[[Sequence[int], Mapping[str, Any]], list[int]]:
    """The scripted model. Where it `thinks`, it says so before every guess."""
    thought = "<think>\nLet me halve.\n</think>\n\n" if thinks else ""
    tokenizer = tokenizer_in(checkpoint)
    episodes: defaultdict[int, int] = defaultdict(int)  # of each task, so that every group has both endings

    def play(ids: Sequence[int], _: Mapping[str, Any]) -> list[int]:
        said = tokenizer.decode(ids).split("<|im_start|>user", 1)[1]
        first = "<|im_start|>user" not in said
        low, high = (int(number) for number in re.findall(r"(\d+) to (\d+)", said)[-1])
        episodes[low] += first
        if GIVES_UP in said or (first and episodes[low] % 2 == 0):
            return tokenizer.encode_joint(GIVES_UP + "<|im_end|>")
        arguments = json.dumps({"name": "guess", "arguments": {"number": (low + high) // 2}})
        return tokenizer.encode_joint(f"{thought}<tool_call>\n{arguments}\n</tool_call><|im_end|>")

    return play


def settings(base_url: str, **rollout: Any) -> dict[str, Any]:
    """Return what `orl train` puts into `--custom-config-path` as `orl_config`."""
    environment = {"base_url": base_url, "nonterminal_reward": 0.0}
    return {"environments": {"playground/GuessNumber": environment}, "rollout": {"max_nudges": 1, **rollout}}
