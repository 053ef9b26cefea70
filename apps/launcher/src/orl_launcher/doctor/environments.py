"""`orl doctor` on secrets and environments: which names are set, whether tasks are listed and a session opens.

No tool is called, and no value of a secret is read for more than its presence and length (law L6).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec import Struct
from orl_core.config import RunConfig, Secret, Secrets
from orl_core.errors import ConfigError, SessionError, boundary
from orl_core.messages import Message, ToolSpec
from orl_rollout.secrets.secrets import ENCODED, PLATFORM_KEY, SHORTEST, api_key

from orl_launcher.doctor.report import Page, Verdict
from orl_launcher.playground import served_here

if TYPE_CHECKING:
    from orl_rollout.loop.session import Opening

ANSWER_BYTES = 1 << 16  # of the names of an environment's secrets


class Opened(Struct, frozen=True, kw_only=True):
    """How an episode of the environment `env_name` begins."""

    env_name: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


def check_secrets(page: Page, config: RunConfig) -> None:
    """Say of each secret whether this process has it."""
    page.group("secrets")
    _check_platform_key(page, config)
    _check_holder(page, config.secrets, "all environments")
    for name, environment in config.environments.items():
        _check_holder(page, environment.secrets, name)


def _check_platform_key(page: Page, config: RunConfig) -> None:
    here = served_here(config)
    users = [
        name
        for name, environment in config.environments.items()
        if environment.send_api_key or (environment.base_url is None and name not in here)
    ]
    if config.rollout.upload:
        users.append("uploads")
    if not users:
        page.say(Verdict.OK, f"{PLATFORM_KEY}: not needed")
    elif api_key():
        page.say(Verdict.OK, f"{PLATFORM_KEY}: set, for {', '.join(users)}")
    else:
        page.say(Verdict.FAILED, f"{PLATFORM_KEY}: not set, and needed for {', '.join(users)}: set this variable")


def _check_holder(page: Page, secrets: Secrets, whose: str) -> None:
    for name, entry in secrets.items():
        given = entry.value if isinstance(entry, Secret) else entry
        variables = list(dict.fromkeys((name, name.upper())))
        found = next((variable for variable in variables if os.environ.get(variable)), None)
        value = given or (os.environ[found] if found else "")
        subject = f"{name} ({whose})"
        if not value:
            page.say(Verdict.FAILED, f"{subject}: not set: set the variable {' or '.join(variables)}")
        elif len(value) < SHORTEST:
            page.say(Verdict.WARNING, f"{subject}: shorter than {SHORTEST} characters, so its echoes are not found")
        elif len(value) < ENCODED:
            page.say(Verdict.WARNING, f"{subject}: shorter than {ENCODED} characters: encoded echoes are not found")
        elif given:
            advice = f"write null there and set the variable {variables[-1]}"
            page.say(Verdict.WARNING, f"{subject}: its value stands in the configuration: {advice}")
        else:
            page.say(Verdict.OK, f"{subject}: set by the variable {found}")


def check_environments(page: Page, config: RunConfig, *, missing: tuple[str, ...] = ()) -> Opened | None:
    """Open one session of each environment, `missing` ones left out; how the first that opens begins."""
    first: Opened | None = None
    for name in config.environments:
        if name in missing:
            continue

        async def visit(name: str = name) -> Opened:
            return await _visit(page, config, name)

        opened = page.await_(name, visit)
        first = first or opened
    return first


async def _visit(page: Page, config: RunConfig, name: str) -> Opened:
    """List the configured splits, then open and close a session of the first task."""
    from orl_rollout.openreward import OpenRewardClient
    from orl_rollout.openreward.listing import list_tasks, open_listing

    environment = config.environments[name]
    async with OpenRewardClient(config) as client:
        if environment.base_url is None and api_key():
            await _check_required(page, config, name)
        splits = dict.fromkeys((*environment.splits, *environment.eval_splits))
        listings = [await open_listing(client, name, split) for split in splits]
        for listing in listings:
            if not listing.size:
                raise ConfigError(f"its split `{listing.split}` has no task: name another in `splits`")
        sizes = ", ".join(f"{listing.split} ({_counted(listing.size, 'task')})" for listing in listings)
        page.say(Verdict.OK, f"{name}: {sizes}")
        tasks = [task async for task in list_tasks(client, listings[0], [0])]
        session = client.session(tasks[0])
        try:
            opening = await session.open(tasks[0])
        finally:
            await session.close()
    _say_opening(page, name, opening)
    return Opened(env_name=name, messages=opening.messages, tools=opening.tools)


def _say_opening(page: Page, name: str, opening: Opening) -> None:
    from orl_rollout.loop.tool_check import Toolbox

    names = Toolbox(opening.tools).names
    said = f"{name}: a session opens with {_counted(len(opening.messages), 'message')}, tools: {names}"
    if opening.answers_in_text:
        page.say(Verdict.OK, f"{said}; a plain answer ends it")
    elif opening.tools:
        page.say(Verdict.OK, said)
    else:
        page.say(Verdict.WARNING, f"{said}; nor does it take a plain answer, so the model can do nothing in it")


async def _check_required(page: Page, config: RunConfig, name: str) -> None:
    """Compare with what the platform says that the environment needs; where it does not say, nothing is concluded."""
    import asyncio

    import msgspec
    from orl_rollout.http.client import HttpClient, read
    from orl_rollout.openreward.sdk import api_url

    path = f"/v1/environments/{name}/required-secrets"
    try:
        with boundary(SessionError, f"asking for the secrets that {name} needs"):
            async with (
                asyncio.timeout(page.seconds / 2),
                HttpClient(api_url()) as http,
                http.request("GET", path, headers={"X-API-Key": api_key()}) as answer,
            ):
                if answer.status != 200:
                    raise SessionError(f"the platform does not say which secrets {name} needs: HTTP {answer.status}")
                needed = msgspec.json.decode(await read(answer, ANSWER_BYTES), type=dict[str, list[str]])["secrets"]
    except SessionError as exc:
        page.say(Verdict.UNCHECKED, f"{name}: {exc}")
        return
    named = {secret.lower() for secret in (*config.secrets, *config.environments[name].secrets)}
    lacking = [secret for secret in needed if secret.lower() not in named and secret != PLATFORM_KEY]
    if lacking:
        told = ", ".join(lacking)
        page.say(Verdict.FAILED, f"{name}: it needs the secrets {told}: name them in `secrets` of the configuration")
    else:
        page.say(Verdict.OK, f"{name}: the secrets that it needs are named: {', '.join(needed) or 'none'}")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
