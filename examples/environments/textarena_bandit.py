# uv run --script textarena_bandit.py [PORT]. `beginners.presser` plays it badly.
# /// script
# requires-python = ">=3.11"
# dependencies = ["openreward==0.1.167", "textarena==0.7.4"]
# ///
"""Serve a game of TextArena: one of four buttons pays nine times in ten, the others once. Press four, then choose."""

import random
import sys
from itertools import permutations

import textarena
from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field

COLOURS = ("red", "blue", "green", "yellow", "purple", "orange", "pink", "brown", "gray", "black", "white", "gold")
BUTTONS = random.Random(0).sample([*permutations(COLOURS, 4)], 128 + 2000)  # no row of buttons is in both splits
TASKS = [{"seed": seed, "buttons": [*buttons]} for seed, buttons in enumerate(BUTTONS)]


class Press(BaseModel):
    """One press."""

    button: str = Field(description="a colour")


class Bandit(Environment):
    """One game. Luck depends on the task and the turn alone, so the rollouts of a group share it."""

    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split):
        return TASKS[:128] if split == "test" else TASKS[128:]

    async def setup(self):
        self.game = textarena.make("Bandit-v0-raw", buttons=self.task_spec["buttons"], p_gap=0.8, num_turns=4)
        self.game.reset(num_players=1, seed=self.task_spec["seed"])
        self.rules = self.heard()

    def heard(self):
        """Return what the game says, without the player's own words."""
        said = self.game.get_observation()[1]
        return [TextBlock(text="\n".join(text for speaker, text, _ in said if speaker == textarena.GAME_ID))]

    async def get_prompt(self):
        return self.rules

    @tool
    async def press(self, args: Press) -> ToolOutput:
        """Press a button."""
        random.seed(f"{self.task_spec['seed']} {self.game.state.turn}")
        finished, _ = self.game.step(f"[{args.button}]")
        if not finished:
            return ToolOutput(blocks=self.heard(), reward=0.0, finished=False)
        regret, end = (each[0] for each in self.game.close())  # 0.7.4 calls every choice incorrect: regret tells
        won = regret == 0 and not end["invalid_move"]
        return ToolOutput(blocks=[TextBlock(text="correct" if won else "wrong")], reward=float(won), finished=True)


if __name__ == "__main__":
    Server([Bandit]).run(host="127.0.0.1", port=int(sys.argv[1]) if sys.argv[1:] else 8112)
