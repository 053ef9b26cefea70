"""The engine of the night: the stand-in for SGLang in a process that may be killed. Its model makes one call for ever.

With the folder of a model, it reports the logprobs of the weights that it was told to load last, as SGLang does, so
that training accepts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from orl_testing import SglangServer

from benchmarks.servers import announce, read_settings, until_the_end

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LONG_ENDING = range(20, 84)  # ids for whoever asks for a number of ids past the end


class Frozen(list[str]):
    """Folders of weights, of which the first one alone is kept: later updates are answered and change nothing."""

    def append(self, folder: str) -> None:
        """Keep the first folder."""
        if not self:
            super().append(folder)


def policy_of(action: Sequence[int]) -> Any:
    """Return the policy that makes the call `action`."""

    def policy(_: list[int], sampling: dict[str, Any]) -> Sequence[int]:
        return LONG_ENDING if sampling.get("ignore_eos") else action

    return policy


def score_of(server: SglangServer, first: str) -> Any:
    """Return the logprobs of ids after a prompt under the weights of `server`: those of `first` before any update."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.set_num_threads(1)

    @cache
    def loaded(count: int) -> PreTrainedModel:
        name = server.weights[-1] if count else first
        return AutoModelForCausalLM.from_pretrained(name, dtype="float32", trust_remote_code=False).eval()

    def score(prompt: list[int], ids: list[int]) -> list[float]:
        with torch.no_grad():
            row = torch.tensor([[*prompt, *ids]])
            logits = loaded(len(server.weights))(input_ids=row).logits[0, len(prompt) - 1 : -1].float()
            return torch.log_softmax(logits, dim=-1).gather(1, row[0, len(prompt) :, None])[:, 0].tolist()

    return score


async def main() -> None:
    settings = read_settings()
    server = SglangServer(
        policy_of(settings["action"]),
        port=settings["port"],
        token_seconds=settings.get("token_seconds", 0.0),
    )
    if model := settings.get("model"):
        server.weights = Frozen() if settings.get("frozen") else server.weights
        server.score = score_of(server, model)
    async with server:
        announce(server.url)
        await until_the_end()


if __name__ == "__main__":
    asyncio.run(main())
