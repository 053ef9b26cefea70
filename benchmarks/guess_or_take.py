"""GuessOrTake, a game in which the better way needs more calls, on the OpenReward SDK's server in its own process.

It has the words and the tool of the playground's GuessNumber, so the playground's model can play it. A first guess at
an end of the range takes the sure reward and ends the episode. Any other first guess continues as in GuessNumber.
"""

from __future__ import annotations

from openreward.environments import TextBlock, ToolOutput, tool
from orl_playground.guess_number import Guess, GuessNumber
from orl_testing.environments import serve

from benchmarks.servers import announce, read_settings, wait_for_the_end

SURE = 0.75  # one call; the middle of what remains pays 1.0 after three calls on average


class GuessOrTake(GuessNumber):
    """Take a sure reward with the first guess, or look for the number."""

    @tool
    async def guess(self, args: Guess) -> ToolOutput:
        """Guess the number."""
        first = self.game.guesses_left == 4
        if first and args.number in (self.game.low, self.game.high):
            return ToolOutput(blocks=[TextBlock(text="correct")], reward=SURE, finished=True)
        reply, reward = self.game.guess(args.number)
        return ToolOutput(blocks=[TextBlock(text=reply)], reward=reward, finished=self.game.finished)


if __name__ == "__main__":
    read_settings()
    with serve(GuessOrTake) as server:
        announce(server.url)
        wait_for_the_end()
