"""GuessNumber for agents: an engine that halves what remains, and an agent's whole rollout through the runtime."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from orl_core.config import RunConfig, decode_config
from orl_core.task import Task
from orl_core.trajectory import Generation
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.runtime import RolloutRequest

from tests.kit.runtimes import runtime_of
from tests.kit.tokenizers import tokenizer

GAME = "playground/GuessNumber"
TOKENIZER = tokenizer()
TASK = Task(
    env_name=GAME,
    deployment_name=GAME,
    environment_name="guessnumber",
    task_spec={"low": 8, "high": 19, "secret": 19},  # halving finds it with the last guess
)
GUESSES = 4
_RANGE = re.compile(r"(?:from|higher:|lower:) (\d+) to (\d+)|(?P<found>correct)")
_TOOL = re.compile(r'"name": "([\w.-]*guess)"')


class Guesser:
    """An engine that plays well: it calls the tool with the middle of what remains.

    If it is offered no such tool it says a sentence, as a model does that is asked for a title. A `form` is a text with
    NUMBER in it, for frameworks that read calls in texts. `texts` are what it was shown, whole.
    """

    def __init__(self, form: str = "") -> None:
        self.form = form
        self.texts: list[str] = []
        self.sampled = 0

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        action = tuple(self.action_ids(ids, sampling))
        self.sampled += len(action)
        return Generation(token_ids=action, logprobs=(-0.5,) * len(action), finish_reason="stop")

    def action_ids(self, ids: Sequence[int], _sampling: Mapping[str, Any]) -> list[int]:
        """The ids of an action after `ids`: the policy of SGLang's stand-in."""
        text = TOKENIZER.decode(ids)
        self.texts.append(text)
        return TOKENIZER.encode_joint(f"{self._action(text)}<|im_end|>")

    def _action(self, text: str) -> str:
        ranges, tool = [*_RANGE.finditer(text)], _TOOL.search(text)
        if not (tool or self.form) or not ranges or ranges[-1]["found"]:
            return f"This is sentence {len(self.texts)}."
        low, high = map(int, ranges[-1].groups()[:2])
        if tool is None or self.form:
            return self.form.replace("NUMBER", str((low + high) // 2))
        call = {"name": tool[1], "arguments": {"number": (low + high) // 2}}
        return f"Take the middle.\n<tool_call>\n{json.dumps(call)}\n</tool_call>"


def config_of(url: str, agent: Any, **rollout: Any) -> RunConfig:
    """The configuration of a run in which `agent` plays the game that `url` serves."""
    environment = {"base_url": url, "reward_reduction": "sum"}
    return decode_config({"environments": {GAME: environment}, "agent": agent, "rollout": rollout}, "test")


async def play(url: str, agent: Any, engine: Guesser, **rollout: Any) -> Outcome:
    """Play TASK once with `agent`; None is the built-in loop."""
    config = config_of(url, agent, **rollout)
    async with OpenRewardClient(config) as client:
        runtime = runtime_of(config, client)
        return await runtime.play(RolloutRequest(task=TASK, rollout_id="one"), engine)
