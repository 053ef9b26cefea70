"""GuessOrTake, a game in which the better way needs more calls, on the OpenReward SDK's server in its own process.

It has the words and the tool of the playground's GuessNumber, so the playground's model can play it. A first guess at
an end of the range takes the sure reward and ends the episode. Any other first guess continues as in GuessNumber, but
the number must be named three times: the first two hits are answered with a range of that number alone.
"""

from __future__ import annotations

from openreward.environments import JSONObject, TextBlock, ToolOutput, tool
from orl_playground.game import GUESSES
from orl_playground.guess_number import Guess, GuessNumber
from orl_testing.environments import serve

from benchmarks.servers import announce, read_settings, wait_for_the_end

SURE = 0.6  # one call; the middle of what remains pays 1.0 after five calls on average
AGAIN = 2  # times that a found number must be named once more


class GuessOrTake(GuessNumber):
    """Take a sure reward with the first guess, or look for the number and name it three times."""

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec, secrets)
        self.hits = 0

    @tool
    async def guess(self, args: Guess) -> ToolOutput:
        """Guess the number."""
        game, first = self.game, self.game.guesses_left == GUESSES and not self.hits
        if first and args.number in (game.low, game.high):
            return ToolOutput(blocks=[TextBlock(text="correct")], reward=SURE, finished=True)
        if args.number == game.secret and self.hits < AGAIN:
            self.hits += 1
            game.low = game.high = game.secret
            return ToolOutput(blocks=[TextBlock(text=f"lower: {game.low} to {game.high}")], reward=0.0)
        reply, reward = game.guess(args.number)
        return ToolOutput(blocks=[TextBlock(text=reply)], reward=reward, finished=game.finished)


if __name__ == "__main__":
    read_settings()
    with serve(GuessOrTake) as server:
        announce(server.url)
        wait_for_the_end()
