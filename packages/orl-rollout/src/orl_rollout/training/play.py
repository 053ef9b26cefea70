"""Play tasks: the one way from tasks to outcomes, for training, evaluations, `orl rollout`, doctor and warm starts.

A rollout that trains samples with a seed of its own. One of an evaluation has the seed of its task and its number among
the samples of the task: two measurements use the same random numbers, so that their difference is that of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import starmap, takewhile
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field
from orl_core.config import RunConfig
from orl_core.task import Task

from orl_rollout.logs import working
from orl_rollout.loop.action_sampler import sampling_seed
from orl_rollout.loop.clock import never
from orl_rollout.loop.engine import Engine
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.group_scores import compare
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.runtime.stack import run_all

T = TypeVar("T")


class Player(Protocol):
    """The player of single rollouts: `orl_rollout.runtime.runtime.Runtime`, or a fake."""

    async def play(self, request: RolloutRequest, engine: Engine, /) -> Outcome:
        """Play one rollout.

        Raises:
            OrlError: the run must end.
        """
        ...


class Batch(Struct, frozen=True, kw_only=True):
    """Tasks to play, each `samples` times in a row, at most `concurrency` rollouts at once (0: all of them).

    The id of a rollout is `name/row`, or `task key/sample` if `name` is empty. `seed` is the run's. A rollout samples
    with a seed of it, the task, and the rollout's id; in an evaluation the sample's number instead of the id.
    `sampling`, `step` and `evaluation` as in `RolloutRequest`. The rollouts `done`, by id, are not played again.
    """

    tasks: Sequence[Task]
    samples: int = 1
    name: str = ""
    seed: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    step: int = 0
    evaluation: bool = False
    concurrency: int = 0
    done: Collection[str] = ()

    def __len__(self) -> int:
        """Return the number of rollouts, with those that are done."""
        return len(self.tasks) * self.samples

    def requests(self) -> Iterator[RolloutRequest]:
        """Yield the request of each rollout that is not done, in the order of tasks."""
        for row in range(len(self)):
            place, sample = divmod(row, self.samples)
            task = self.tasks[place]
            rollout_id = f"{self.name}/{row}" if self.name else f"{task.key}/{sample}"
            if rollout_id in self.done:
                continue
            seed = sampling_seed(self.seed, task.key, sample if self.evaluation else rollout_id)
            yield RolloutRequest(
                task=task,
                rollout_id=rollout_id,
                sampling={**self.sampling, "sampling_seed": seed},
                evaluation=self.evaluation,
                step=self.step,
            )


async def play(
    batch: Batch,
    player: Player,
    engine: Engine,
    keep: Callable[[Outcome], T],
    *,
    stopped: Callable[[], bool] = never,
) -> list[T]:
    """Play the batch, and return what `keep` makes of each outcome, in the order of the batch.

    `keep` is called as soon as a rollout ends. Once `stopped` is true no rollout begins; the result has those that did.

    Raises:
        OrlError: the run must end, as the breaker says, or because nothing can be recorded.
    """
    kept: dict[int, T] = {}

    async def one(row: int, request: RolloutRequest) -> None:
        kept[row] = keep(await player.play(request, engine))

    left = takewhile(lambda _: not stopped(), enumerate(batch.requests()))
    with working(lambda: f"{'evaluating' if batch.evaluation else 'playing'} {len(kept)} of {len(batch)}"):
        await run_all(starmap(one, left), min(batch.concurrency or len(batch), len(batch)))
    return [kept[row] for row in sorted(kept)]


async def compared(config: RunConfig, outcomes: Sequence[Outcome]) -> tuple[Sequence[Outcome], dict[str, float]]:
    """Return the outcomes with the rewards of `group_reward`, and metrics; unchanged if it is off."""
    if config.group_reward.mode == "off":
        return outcomes, {}
    async with OpenRewardClient(config) as client:
        return await compare(outcomes, client, config.group_reward, patience=config.rollout.patience)
