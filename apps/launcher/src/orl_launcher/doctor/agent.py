"""Check of an agent of the user's: it can be started, and plays one turn if the command names an engine.

The turn is played as any rollout is, in the first environment, and is not recorded.
"""

from __future__ import annotations

from msgspec import structs
from orl_core.config import AgentConfig, RunConfig
from orl_core.config.limits import context_tokens_of, limits_of
from orl_core.errors import ConfigError, OrlError
from orl_core.render import Renderer
from orl_core.trajectory import RolloutSpec
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.listing import list_tasks, open_listing
from orl_rollout.runtime.player import Player, load_player
from orl_rollout.sglang.client import SglangEngine

from orl_launcher.doctor.report import Report, Verdict
from orl_launcher.playground import playground


def check_agent(page: Report, config: RunConfig, renderer: Renderer | None, url: str | None) -> None:
    """Load the agent, and play one turn with it against the engine at `url`. `renderer` is None if it is unknown."""
    agent = config.agent_config or AgentConfig()
    name = f"agent {agent.name}"
    player = page.attempt(name, lambda: load_player(config))
    if player is None:
        return
    started = "the program is there" if agent.command else "it can be imported"
    if renderer is None or url is None:
        page.say(Verdict.OK, f"{name}: {started}")
        needs = "--engine URL" if url is None else "an environment that opens and a certified tokenizer"
        page.say(Verdict.UNCHECKED, f"{name}: no turn is played without {needs}")
        return
    try:
        with playground(config) as reachable:
            turn = page.await_(name, lambda: _play(reachable, player, renderer, url), stage="playing a turn")
    except OrlError as exc:
        page.say(Verdict.FAILED, f"{name}: {exc}")
        return
    if turn:
        page.say(Verdict.OK, f"{name}: {turn}")


async def _play(config: RunConfig, player: Player, renderer: Renderer, url: str) -> str:
    """Play one turn of the first task, and say what happened.

    Raises:
        OrlError: the rollout ended in ERROR, as it does if the agent never asked the model.
    """
    name = next(iter(config.environments), None)
    if name is None:
        raise ConfigError("there is no environment to play in. Name one in `environments`")
    context = context_tokens_of(config)
    async with OpenRewardClient(config) as client, SglangEngine(url, context_tokens=context) as engine:
        listing = await open_listing(client, name, config.environments[name].splits[0])
        task = await anext(list_tasks(client, listing, [0]))
        limits = structs.replace(limits_of(config, name), max_turns=1)
        job = RolloutSpec(task=task, rollout_id="orl-doctor", limits=limits, sampling={"temperature": 1.0})
        trajectory = await player(job, session=client.session(task), renderer=renderer, engine=engine)
    if trajectory.error:
        raise OrlError(trajectory.error)
    (turn,) = trajectory.turns
    calls = f", {len(turn.results)} calls of tools" if turn.results else ""
    return f"played one turn in {name}: {len(turn.action_ids)} ids sampled{calls}; it ended with {trajectory.ending}"
