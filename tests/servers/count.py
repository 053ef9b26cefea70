"""Serve a small environment with the SDK of this Python: `python count.py openreward.environments`, or `... ors`.

The first line on stdout that opens with `http` is the address. Each call is one line of JSON on stderr, after `call: `.
"""

import importlib
import json
import socket
import sys

import uvicorn
from pydantic import BaseModel

sdk = importlib.import_module(sys.argv[1])
types = importlib.import_module(f"{sys.argv[1]}.types")


class Guess(BaseModel):
    """A number."""

    number: int


class Count(sdk.Environment):  # pyright: ignore[reportUntypedBaseClass]
    """The number is in the prompt. A right guess pays 1 and ends the episode, a wrong one pays 0.25."""

    def __init__(self, task_spec=None, secrets=None):
        super().__init__(task_spec or {}, secrets or {})
        self.given = dict(secrets or {})

    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split):
        return [{"number": number, "split": split} for number in range(5)]

    def get_prompt(self):
        return [types.TextBlock(text=f"The number is {self.task_spec['number']}.")]

    @sdk.tool
    def guess(self, params: Guess) -> types.ToolOutput:  # pyright: ignore[reportInvalidTypeForm]
        """Guess the number."""
        right = params.number == self.task_spec["number"]
        reward = 1.0 if right else 0.25
        call = {
            "number": params.number,
            "reward": reward,
            "secrets": sorted(key for key in self.given if self.given[key]),
        }
        print("call:", json.dumps(call), file=sys.stderr, flush=True)
        return types.ToolOutput(
            blocks=[types.TextBlock(text="\n".join(["    yes"] * 2000))], reward=reward, finished=right
        )


listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
uvicorn.Server(uvicorn.Config(sdk.Server([Count]).app, log_level="critical")).run(sockets=[listener])
