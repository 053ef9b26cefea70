# uv run --script textworld_express_twc.py [PORT]. It needs `java`. `beginners.tidier` plays it badly.
# /// script
# requires-python = ">=3.11"
# dependencies = ["openreward==0.1.167", "textworld-express==1.1.0"]
# ///
"""Serve TextWorld Common Sense of textworld-express: one thing lies in the wrong place, and has to be put away."""

import sys

from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field
from textworld_express import TextWorldExpressEnv

GAMES = TextWorldExpressEnv()  # one Java process for all sessions: each call replays the actions of its session
GAMES.load("twc", "numLocations=1,numItemsToPutAway=1,includeDoors=0,limitInventorySize=0")


def play(fold, seed, actions=()):
    """Return what the game says after `actions`, whether it is won, and its task."""
    said, state = GAMES.reset(seed=seed, gameFold=fold)
    for action in actions:
        said, _, _, state = GAMES.step(action)
    valid = sorted({*state["validActions"]} - {"inventory", "look around"})
    return f"{said.strip()}\nActions: {', '.join(valid)}", state["tasksuccess"], state["taskDescription"]


def tasks(fold, seeds):
    """Return one task for each start: many seeds share one."""
    return [{"fold": fold, "seed": seed} for seed in {play(fold, seed)[0]: seed for seed in seeds}.values()]


TRAIN = tasks("train", range(1000))
TEST = tasks("test", range(20000, 21000)) + tasks("dev", range(10000, 11000))  # other things than in train


class Act(BaseModel):
    """One action."""

    action: str = Field(description="one of the actions")


class Twc(Environment):
    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split):
        return TRAIN if split == "train" else TEST

    async def get_prompt(self):
        self.actions = []
        start, _, task = play(**self.task_spec)
        return [TextBlock(text=f"{task.strip()}\n{start}")]

    @tool
    async def act(self, args: Act) -> ToolOutput:
        """Do one of the actions."""
        self.actions.append(args.action)
        said, won, _ = play(**self.task_spec, actions=self.actions)
        return ToolOutput(blocks=[TextBlock(text=said)], reward=float(won), finished=won or len(self.actions) == 6)


if __name__ == "__main__":
    Server([Twc]).run(host="127.0.0.1", port=int(sys.argv[1]) if sys.argv[1:] else 8113)
