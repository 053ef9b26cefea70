"""What each environment needs of a model, before a GPU is rented: `orl doctor --fit`.

Some episodes are played without a model: by a function of the user's, else by random calls. One table says how long
prompt, results and episodes are, and each finding whether context, budgets and the model's format hold them.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle, islice
from statistics import fmean, median
from typing import TYPE_CHECKING, cast

from msgspec import structs
from orl_core.config.limits import context_tokens_of
from orl_core.messages import ImageBlock, Message, ToolCall, ToolSpec
from orl_core.trajectory import StopReason, Trajectory
from orl_rollout.edge.http import UnsafeAnswer
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.environment import list_tasks, open_listing
from orl_rollout.openreward.transport import Refusal
from orl_rollout.runtime.stack import open_runtime
from orl_rollout.training.play import Batch, play

from orl_launcher import cli
from orl_launcher.doctor.random_calls import arguments_for
from orl_launcher.doctor.report import Report, Verdict
from orl_launcher.episodes import Function, ScriptedPlayer, load_function
from orl_launcher.playground import playground
from orl_launcher.view.tables import plain_table
from orl_launcher.view.wording import rate

if TYPE_CHECKING:
    from orl_core.config import RunConfig
    from orl_rollout.loop.engine import Engine
    from orl_rollout.results.outcome import Outcome

EPISODES = 8  # of each environment
ROOM = 2  # `max_turns` proposed for each turn of the longest episode of a player
RANDOM = "random calls"
COLUMNS = ("", "prompt", "tools", "images", "turns", "result", "s a call", "room")


def check_fit(page: Report, config: RunConfig, model: str | None, player: str | None) -> None:
    """Play episodes of each environment, print a finding for each, and one table.

    Its lengths are in token ids. `room` is the most that each action may have in the longest episode.
    """
    function = page.attempt("--player", lambda: load_function(player)) if player else random_calls
    if function is None:
        return
    table = plain_table(
        *COLUMNS, title=f"{EPISODES} episodes each, by {player or RANDOM}: median (most); lengths in ids"
    )
    for name in config.environments:
        outcomes = page.await_(name, partial(_play, page, config, model, name, function), stage="importing the SDK")
        if outcomes:
            played = [outcome.trajectory for outcome in outcomes]
            table.add_row(name, *_row(config, played))
            page.say(*_finding(config, name, played, measured=bool(player)))
            judged = [outcome for outcome in outcomes if outcome.trajectory.stop_reason is not StopReason.ERROR]
            if judged:
                reward, success = fmean(one.reward for one in judged), fmean(one.success for one in judged)
                page.note(f"{player or RANDOM}: mean reward {reward:.3g}, success {rate(success, len(judged))}")
    if table.row_count:
        cli.console().print(table)


def random_calls(_: Sequence[Message], tools: Sequence[ToolSpec]) -> ToolCall | str:
    """Call any tool with arguments that fit its schema; answer with a text if there is no tool."""
    rng = random.Random()  # noqa: S311 - no secret
    tool = rng.choice(tools) if tools else None
    return ToolCall(name=tool.name, arguments=arguments_for(tool.parameters, rng)) if tool else "test"


async def _play(page: Report, config: RunConfig, model: str | None, name: str, function: Function) -> list[Outcome]:
    """Return episodes of the first tasks of an environment. Nothing of them is kept or uploaded.

    The SDK's server keeps its first listing for questions by number. Here the tasks are listed once more.
    """
    player = ScriptedPlayer(function, name)
    quiet = structs.replace(config, rollout=structs.replace(config.rollout, upload=False, journal=None))
    with playground(quiet, model) as reachable, tempfile.TemporaryDirectory() as folder:
        async with OpenRewardClient(reachable) as client:
            listing = await open_listing(client, name, reachable.environments[name].splits[0])
            tasks = [task async for task in list_tasks(listing, range(min(EPISODES, listing.size)))]
            with suppress(Refusal, UnsafeAnswer):  # the server numbers its tasks, or they are too many for one answer
                again = await listing.remote.list_tasks(listing.split)
                if [task.task_spec for task in tasks] != [dict(task.task_spec) for task in again[: len(tasks)]]:
                    advice = "Return them in the same order each time"
                    page.say(Verdict.WARNING, f"{name}: a second listing of its tasks begins with others. {advice}")
        async with open_runtime(reachable, str(reachable.trainer.model), folder, 1, player) as runtime:
            batch = Batch(tasks=[*islice(cycle(tasks), EPISODES)], name="fit")
            return await play(batch, runtime, cast("Engine", player), lambda outcome: outcome)


def _row(config: RunConfig, played: Sequence[Trajectory]) -> list[str]:
    """Return the cells of an environment: medians, and the greatest of what must fit."""
    turns = [len(episode.turns) for episode in played]
    results = [len(turn.observation) for episode in played for turn in episode.turns[1:]]
    calls = [result.seconds for episode in played for turn in episode.turns for result in turn.results]
    return [
        str(_prompt(played)),
        str(max(len(episode.tools) for episode in played)),
        str(sum(map(_images, played))),
        f"{median(turns):g} ({max(turns)})",
        f"{median(results):g} ({max(results)})" if results else "-",
        f"{median(calls):.2g} ({max(calls):.2g})" if calls else "-",
        str(_room(config, played)),
    ]


def _finding(config: RunConfig, name: str, played: Sequence[Trajectory], *, measured: bool) -> tuple[Verdict, str]:
    """Return whether the episodes fit, and what to do if they do not.

    Those of a player are `measured`: they tell how many turns a model needs, which random calls do not.
    """
    room, needed = _room(config, played), config.rollout.turn_tokens
    turns = config.environments[name].max_turns
    failed = [episode.error for episode in played if episode.stop_reason is StopReason.ERROR]
    cut = sum(episode.stop_reason is StopReason.MAX_TURNS and episode.stop_detail is None for episode in played)
    if failed:
        return Verdict.FAILED, f"{name}: {len(failed)} of {len(played)} episodes end in ERROR: {failed[0]}"
    if room <= 0:
        return Verdict.FAILED, f"{name}: the context has no room for actions. Raise rollout.context_tokens"
    if room < needed:
        advice = "Raise rollout.context_tokens, or lower rollout.turn_tokens"
        return Verdict.WARNING, f"{name}: room for {room} ids in an action, and turn_tokens is {needed}. {advice}"
    if 2 * cut > len(played):
        advice = f"Raise `max_turns` of environments.{name}, or name a --player that comes to an end"
        if cut == len(played):
            advice += ". No result had `finished`: a tool has to return it"
        return Verdict.WARNING, f"{name}: {cut} of {len(played)} episodes end at {turns} turns. {advice}"
    longest = max(len(episode.turns) for episode in played)
    if measured and turns > 2 * ROOM * longest:
        advice = f"Lower `max_turns` of environments.{name} to {ROOM * longest}: a model that fails plays on to it"
        return Verdict.WARNING, f"{name}: the longest episode has {longest} turns of {turns}. {advice}"
    return Verdict.OK, f"{name}: {len(played)} episodes fit, with room for {room} ids in each action"


def _prompt(played: Sequence[Trajectory]) -> int:
    return max((len(episode.turns[0].observation) for episode in played if episode.turns), default=0)


def _room(config: RunConfig, played: Sequence[Trajectory]) -> int:
    """Return the most ids that each action may have, so that the longest episode stays in the context."""
    context = context_tokens_of(config)
    return min(
        (context - sum(len(turn.observation) for turn in episode.turns)) // max(1, len(episode.turns))
        for episode in played
    )


def _images(episode: Trajectory) -> int:
    """Count the images that an episode shows."""
    contents = [message.content for message in episode.messages]
    contents += [result.content for turn in episode.turns for result in turn.results]
    return sum(isinstance(block, ImageBlock) for content in contents for block in content)
