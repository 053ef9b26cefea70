"""One session, one call and one upload of an environment, with a report for an issue: `orl doctor --live`.

The requests are those of a run. The report holds versions, paths, statuses, times, shapes, and names of tools and
arguments: no text of the environment and no secret.
"""

from __future__ import annotations

import argparse
import platform
import time
from importlib.metadata import version
from types import SimpleNamespace

import aiohttp
import msgspec
from msgspec import structs
from orl_core import RolloutSpec, RunConfig, StopReason, ToolCall, Trajectory, Turn
from orl_rollout import Entry, OpenRewardClient
from orl_rollout.edge.http import HttpClient
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.episodes.events import events_of
from orl_rollout.episodes.uploader import post, uploads
from orl_rollout.openreward.client import open_listing
from orl_rollout.openreward.environment import list_tasks
from orl_rollout.openreward.faults import as_session_error
from orl_rollout.openreward.platform import api_url
from orl_rollout.run_folder.environments import refuse_other_build

from orl_launcher import cli
from orl_launcher.configuration import resolve
from orl_launcher.doctor.episodes import random_calls
from orl_launcher.doctor.report import Report
from orl_launcher.episodes import action_of
from orl_launcher.playground import playground
from orl_launcher.reports import DoctorReport

RUN = "orl-doctor"  # the run's name at OpenReward


def check_live(arguments: argparse.Namespace) -> DoctorReport:
    """Try the environment of `--live`, as the configuration has it, else that of OpenReward. Return the findings.

    One call is made, the episode is uploaded, and the report is printed.
    """
    name: str = arguments.live
    page = Report(cli.console(), arguments.timeout)
    page.group("live")
    bare: dict[str, object] = {"environments": {name: {}}}
    resolved = page.attempt(name, lambda: resolve(arguments, bare=bare, model="unread"))
    if resolved is None:
        return page.conclude()
    config = resolved[0]
    page.scrubber = Scrubber.of(config)
    heard = [
        f"orl {version('orl-launcher')}, openreward {version('openreward')}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}"
    ]
    episode = page.await_(name, lambda: _play(page, config, name, heard), stage="importing the SDK")
    if episode and page.attempt("upload", lambda: uploads(config, name)):
        status = page.await_("upload", lambda: _upload(page, config, episode, heard), stage="uploading")
        if status is not None:
            page.say("ok" if status < 300 else "failed", f"upload: the platform answers HTTP {status}")
    else:
        page.say("not checked", "upload: needs an episode, a key, and an environment of OpenReward")
    page.say("ok", "report: read the lines below, then paste them into an issue")
    page.note("\n".join(heard))
    return page.conclude()


async def _play(page: Report, config: RunConfig, name: str, heard: list[str]) -> Trajectory:
    """Make one call in the first task. Return the episode."""
    environment = config.environment(name)
    place = "OpenReward" if environment.base_url is None else "its own server"
    with playground(config) as reachable:
        async with OpenRewardClient(reachable, traces=[_trace(heard)]) as client:
            with as_session_error(f"asking {name} for its version"):
                stated = await (await client.environment(name)).version()
            heard.append(f"{name} at {place}: openreward {stated.version}, build {stated.build_sha}")
            refuse_other_build(name, config, stated)
            page.stage = "listing its tasks"
            listing = await open_listing(client, name, environment.splits[0])
            task = await anext(list_tasks(listing, [0]))
            page.say("ok", f"{name}: {listing.split} has {listing.size} tasks")
            session, began = client.session(task), time.monotonic()
            try:
                page.stage = "opening a session"
                opening = await session.open(task)
                tools = ", ".join(tool.name for tool in opening.tools)
                heard.append(f"{len(opening.messages)} messages, tools: {tools}")
                page.say("ok", f"{name}: a session opens in {time.monotonic() - began:.1f} s")
                page.stage = "calling a tool"
                act = random_calls((), opening.tools[:1])
                result = await (session.call(act) if isinstance(act, ToolCall) else session.answer(act))
            finally:
                await session.close()
    blocks = ", ".join(type(block).__name__ for block in result.content)
    reward, failure = "no reward" if result.reward is None else "a reward", result.failure or "none"
    heard.append(f"result of {result.name}: [{blocks}], {reward}, finished {result.finished}, failure {failure}")
    page.say("ok", f"{name}: {result.name} answers in {result.seconds:.1f} s, and the session closes")
    turn = Turn(observation=(), generations=(), action=action_of(act), results=(result,))
    return Trajectory(
        job=RolloutSpec(task=task, rollout_id=f"{RUN}-{time.time_ns()}", evaluation=True),
        messages=opening.messages,
        turns=(turn,),
        stop_reason=StopReason.FINISHED if result.finished else StopReason.ABORTED,
        seconds=time.monotonic() - began,
    )


async def _upload(page: Report, config: RunConfig, episode: Trajectory, heard: list[str]) -> int:
    """Upload the episode as a run does. Return the last status."""
    entry = Entry(key=episode.job.rollout_id, time=time.time(), reward=0.0, success=False, trajectory=episode)
    events = page.scrubber.scrub_in(list(events_of(entry, structs.replace(config, openreward_run_name=RUN))))
    async with HttpClient(api_url(), traces=[_trace(heard)]) as http:
        status = await post(http, msgspec.json.encode({"events": events[:1]}))  # its start is a request of its own
        return status if status >= 300 else await post(http, msgspec.json.encode({"events": events[1:]}))


def _trace(heard: list[str]) -> aiohttp.TraceConfig:
    """Return a trace that writes a line for each answered request: method, path, status, seconds until it begins."""
    trace = aiohttp.TraceConfig()

    async def began(_session: object, request: SimpleNamespace, _params: object) -> None:
        request.began = time.monotonic()

    async def answered(_session: object, request: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
        seconds = time.monotonic() - request.began
        heard.append(f"{params.method} {params.url.path}: {params.response.status} in {seconds:.3f} s")

    trace.on_request_start.append(began)
    trace.on_request_end.append(answered)
    return trace
