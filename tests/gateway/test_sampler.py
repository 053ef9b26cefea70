"""Each request of an episode has a seed of its own; an episode that is repeated has the same seeds."""

from __future__ import annotations

from orl_core.limits import Limits
from orl_core.trajectory import Generation, RolloutSpec
from orl_gateway.sampler import Sampler
from orl_rollout.loop.clock import never
from orl_rollout.loop.token_buffer import TokenBuffer

from tests.gateway.agents import RENDERER, TASK, Model


async def seeds_of(seed: int) -> list[int]:
    model = Model()
    job = RolloutSpec(task=TASK, rollout_id="k", limits=Limits(), sampling={"sampling_seed": seed, "stop": "END"})
    sampler = Sampler(job, renderer=RENDERER, engine=model, stopped=never)
    for _ in range(3):
        sampled: list[Generation] = []
        await sampler.sample(TokenBuffer([1, 2]), 512, ["STOP"], sampled)
    assert all(sampling["stop"] == ["END", "STOP"] for sampling in model.samplings)
    return [sampling["sampling_seed"] for sampling in model.samplings]


async def test_branches_of_one_point_draw_apart() -> None:
    assert len({*await seeds_of(7)}) == 3
    assert await seeds_of(7) == await seeds_of(7)
    assert not {*await seeds_of(7)} & {*await seeds_of(8)}
