"""The check of `orl doctor --fit`, which plays episodes: do context and budgets hold them?

Your function plays, else random calls: it needs no model and no GPU. One table shows how long prompt, results and
episodes are, and each finding whether context, budgets and the model's format hold them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from statistics import fmean, median
from typing import Any, cast

from msgspec import structs
from orl_core import ImageBlock, Message, StopReason, ToolCall, ToolSpec, Trajectory
from orl_core.config import RunConfig
from orl_rollout import Engine, OpenRewardClient, Outcome, open_runtime
from orl_rollout.openreward.client import open_listing
from orl_rollout.openreward.environment import list_tasks
from orl_rollout.training.play import Batch, play

from orl_launcher import cli
from orl_launcher.doctor.report import Report
from orl_launcher.episodes import ScriptedPlayer, load_function
from orl_launcher.playground import playground
from orl_launcher.reports import CheckVerdict
from orl_launcher.view.tables import plain_table
from orl_launcher.view.wording import rate

EPISODES = 8  # of each environment
ROOM = 2  # `max_turns` proposed for each turn of the longest episode of a player
WIDTH = 100  # of the range of a random number that has no upper end
COLUMNS = ("", "prompt", "tools", "images", "turns", "result", "s a call", "room")


def check_fit(page: Report, config: RunConfig, named: str | None) -> None:
    """Play episodes of each environment, print a finding for each, and one table.

    Its lengths are in token ids. `room` is the most that each action may have in the longest episode.
    """
    function = page.attempt("--player", lambda: load_function(named)) if named else random_calls
    if function is None:
        return
    by = named or "random calls"
    table = plain_table(*COLUMNS, title=f"{EPISODES} episodes each, by {by}: median (most); lengths in ids")
    for name in config.environments:
        player = ScriptedPlayer(function, name)
        work = partial(_play, config, name, player)
        outcomes = page.await_(name, work, stage="importing the SDK")
        if outcomes:
            played = [outcome.trajectory for outcome in outcomes]
            table.add_row(name, *_row(config, played))
            page.say(*_finding(config, name, played, measured=bool(named)))
            judged = [outcome for outcome in outcomes if outcome.trajectory.stop_reason is not StopReason.ERROR]
            if judged:
                reward, success = fmean(one.reward for one in judged), fmean(one.success for one in judged)
                page.note(f"{by}: mean reward {reward:.3g}, success {rate(success, len(judged))}")
    if table.row_count:
        cli.console().print(table)


async def _play(config: RunConfig, name: str, player: ScriptedPlayer) -> list[Outcome]:
    """Play EPISODES of the first tasks of an environment. Nothing is recorded or uploaded."""
    quiet = structs.replace(config, rollout=structs.replace(config.rollout, journal=None))
    with playground(quiet) as reachable:
        async with OpenRewardClient(reachable) as client:
            listing = await open_listing(client, name, reachable.environments[name].splits[0])
            tasks = [task async for task in list_tasks(listing, range(min(EPISODES, listing.size)))]
        batch = Batch(tasks=[*islice(cycle(tasks), EPISODES)], name="doctor", sampling={"temperature": 1.0})
        async with open_runtime(reachable, str(reachable.trainer.model), "", 1, player) as runtime:
            return await play(batch, runtime, cast("Engine", player), lambda outcome: outcome)


def random_calls(_: Sequence[Message], tools: Sequence[ToolSpec]) -> ToolCall | str:
    """Call any tool with arguments that fit its schema; answer with a text if there is no tool."""
    rng = random.Random()  # noqa: S311 - no secret
    tool = rng.choice(tools) if tools else None
    return ToolCall(name=tool.name, arguments=random_arguments(tool.parameters, rng)) if tool else "test"


def random_arguments(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a value for each argument that a tool requires. The tool may refuse them, which is an answer too."""
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    return {name: _value(properties.get(name, {}), rng) for name in schema.get("required", ())}


def _value(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """Return a value of the schema's type. What it demands of a text is not obeyed."""
    low = schema.get("minimum", 0)
    high = schema.get("maximum", low + WIDTH)
    values: dict[str, Callable[[], Any]] = {
        "integer": lambda: rng.randint(int(low), int(high)),
        "number": lambda: rng.uniform(low, high),
        "boolean": lambda: rng.random() < 0.5,
        "array": lambda: [_value(schema.get("items", {}), rng)],
        "object": lambda: random_arguments(schema, rng),
    }
    if "enum" in schema or "const" in schema:
        return rng.choice(schema.get("enum", [schema.get("const")]))
    return values.get(str(schema.get("type")), lambda: "test")()


def _row(config: RunConfig, played: Sequence[Trajectory]) -> list[str]:
    """Return the cells of an environment: medians, and the greatest of what must fit."""
    turns = [len(episode.turns) for episode in played]
    prompts = [len(turn.observation) for episode in played for turn in episode.turns[:1]]
    observed = [len(turn.observation) for episode in played for turn in episode.turns[1:]]
    results = [result for episode in played for turn in episode.turns for result in turn.results]
    contents = [one.content for one in (*results, *(message for episode in played for message in episode.messages))]
    seconds = [result.seconds for result in results]
    return [
        str(max(prompts, default=0)),
        str(max(len(episode.tools) for episode in played)),
        str(sum(isinstance(block, ImageBlock) for content in contents for block in content)),
        f"{median(turns):g} ({max(turns)})",
        f"{median(observed):g} ({max(observed)})" if observed else "-",
        f"{median(seconds):.2g} ({max(seconds):.2g})" if seconds else "-",
        str(_room(config, played)),
    ]


def _finding(config: RunConfig, name: str, played: Sequence[Trajectory], *, measured: bool) -> tuple[CheckVerdict, str]:
    """Return whether the episodes fit, and what to do if they do not.

    Those of a player are `measured`: they show how many turns a model needs, which random calls do not.
    """
    room, needed = _room(config, played), config.rollout.turn_tokens
    turns, longest = config.environments[name].max_turns, max(len(episode.turns) for episode in played)
    failed = [episode.error for episode in played if episode.stop_reason is StopReason.ERROR]
    cut = sum(episode.stop_reason is StopReason.MAX_TURNS and episode.stop_detail is None for episode in played)
    if failed:
        return "failed", f"{name}: {len(failed)} of {len(played)} episodes end in ERROR: {failed[0]}"
    if room <= 0:
        return "failed", f"{name}: the context has no room for actions. Raise rollout.context_tokens"
    if room < needed:
        advice = "Raise rollout.context_tokens, or lower rollout.turn_tokens"
        return "warning", f"{name}: room for {room} ids in an action, and turn_tokens is {needed}. {advice}"
    if 2 * cut > len(played):
        advice = f"Raise `max_turns` of environments.{name}, or name a --player that comes to an end"
        advice += ". No result had `finished`: a tool has to return it" if cut == len(played) else ""
        return "warning", f"{name}: {cut} of {len(played)} episodes end at {turns} turns. {advice}"
    if measured and turns > 2 * ROOM * longest:
        advice = f"Lower `max_turns` of environments.{name} to {ROOM * longest}: a model that fails plays on to it"
        return "warning", f"{name}: the longest episode has {longest} turns of {turns}. {advice}"
    return "ok", f"{name}: {len(played)} episodes fit, with room for {room} ids in each action"


def _room(config: RunConfig, played: Sequence[Trajectory]) -> int:
    """Return the most ids that each action may have, so that the longest episode stays in the context."""
    context = config.context_tokens
    return min(
        (context - sum(len(turn.observation) for turn in episode.turns)) // max(1, len(episode.turns))
        for episode in played
    )
