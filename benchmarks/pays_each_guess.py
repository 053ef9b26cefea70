"""The playground's GuessNumber with a reward for each guess, on the OpenReward SDK's server in its own process."""

from __future__ import annotations

import math

from openreward.environments import TextBlock, ToolOutput, tool
from orl_playground import guess_number
from orl_testing.environments import serve

from benchmarks.servers import announce, read_settings, wait_for_the_end

HALVING = 0.1  # the reward for ruling out half of what remains; the hit pays 1.0 more


class GuessNumber(guess_number.GuessNumber):
    """Find the number. A guess pays for what it rules out, and the last miss pays nothing."""

    @tool
    async def guess(self, args: guess_number.Guess) -> ToolOutput:
        """Guess the number."""
        before = self.game.high - self.game.low + 1
        reply, reward = self.game.guess(args.number)
        remaining = 1 if self.game.finished else self.game.high - self.game.low + 1
        if reward or not self.game.finished:
            reward += HALVING * math.log2(before / remaining)
        return ToolOutput(blocks=[TextBlock(text=reply)], reward=reward, finished=self.game.finished)


if __name__ == "__main__":
    read_settings()
    with serve(GuessNumber) as server:
        announce(server.url)
        wait_for_the_end()
