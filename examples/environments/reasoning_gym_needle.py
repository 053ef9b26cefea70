# uv run --script reasoning_gym_needle.py [PORT]. `beginners.reader` plays it badly.
# /// script
# requires-python = ">=3.11"
# dependencies = ["openreward==0.1.167", "reasoning-gym==0.1.25"]
# ///
"""Serve tasks of reasoning-gym: who of six people does the thing that the question names?"""

import sys

from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field
from reasoning_gym import create_dataset

TEST, TRAIN = 128, 2000
TASKS = create_dataset("needle_haystack", min_num_statements=6, max_num_statements=6, seed=0, size=TEST + TRAIN)


class Answer(BaseModel):
    """One answer."""

    name: str = Field(description="a name from the text")


class Needle(Environment):
    """One question: the first answer ends the episode."""

    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split):
        return [{"index": index} for index in (range(TEST) if split == "test" else range(TEST, TEST + TRAIN))]

    def get_prompt(self):
        return [TextBlock(text=TASKS[self.task_spec["index"]]["question"])]

    @tool
    def answer(self, args: Answer) -> ToolOutput:
        """Answer the question."""
        task = TASKS[self.task_spec["index"]]
        score = TASKS.score_answer(args.name, task)
        return ToolOutput(blocks=[TextBlock(text=f"It is {task['answer']}.")], reward=score, finished=True)


if __name__ == "__main__":
    Server([Needle]).run(host="127.0.0.1", port=int(sys.argv[1]) if sys.argv[1:] else 8111)
