"""Checks of secrets and environments: each secret is set, each split has tasks, and a session opens.

No tool is called. Of a secret's value only presence and length are read (law L6).
"""

from __future__ import annotations

import os
from functools import partial

from orl_core import ConfigError, RunConfig, SessionError
from orl_rollout import Opening, OpenRewardClient
from orl_rollout.edge.secrets import ENCODED, PLATFORM_KEY, SHORTEST, SecretEntry, all_entries, api_key, unset
from orl_rollout.loop.tool_check import Toolbox
from orl_rollout.openreward.client import open_listing
from orl_rollout.openreward.environment import list_tasks, served_at
from orl_rollout.openreward.faults import as_session_error
from orl_rollout.openreward.platform import required_secrets
from orl_rollout.run_folder.environments import refuse_other_build

from orl_launcher.doctor.report import Report
from orl_launcher.playground import served_here

Opened = tuple[str, Opening]  # an environment, and the beginning of its episode


def check_secrets(page: Report, config: RunConfig) -> None:
    """Check that this process has each secret."""
    page.group("secrets")
    _check_platform_key(page, config)
    for entry in all_entries(config):
        _check_entry(page, entry)


def _check_platform_key(page: Report, config: RunConfig) -> None:
    here = served_here(config)
    users = [
        name
        for name, environment in config.environments.items()
        if environment.send_api_key or (environment.base_url is None and name not in here)
    ]
    if config.rollout.upload:
        users.append("uploads")
    if not users:
        page.say("ok", f"{PLATFORM_KEY}: not needed")
    elif api_key():
        page.say("ok", f"{PLATFORM_KEY}: set, for {', '.join(users)}")
    else:
        page.say("failed", f"{PLATFORM_KEY}: not set, but needed for {', '.join(users)}. Set this variable")


def _check_entry(page: Report, entry: SecretEntry) -> None:
    subject = f"{entry.name} ({entry.holder or 'all environments'})"
    if entry.literal == "":
        page.say("ok", f"{subject}: taken away")
    elif not entry.value:
        page.say("warning", f"{subject}: {unset(entry)}")
    elif len(entry.value) < ENCODED:
        least, form = (SHORTEST, "") if len(entry.value) < SHORTEST else (ENCODED, "encoded ")
        page.say("warning", f"{subject}: shorter than {least} characters, so {form}echoes of it are not found")
    elif entry.literal:
        advice = f"Write null there and set the variable {entry.variables[-1]}"
        page.say("warning", f"{subject}: its value is in the configuration. {advice}")
    else:
        source = next(variable for variable in (entry.own_variable, *entry.variables) if os.environ.get(variable))
        page.say("ok", f"{subject}: set by the variable {source}")


def check_environments(page: Report, config: RunConfig, *, missing: tuple[str, ...] = ()) -> Opened | None:
    """Open one session of each environment that is not `missing`. Return the first that opens."""
    names = [name for name in config.environments if name not in missing]
    visits = [page.await_(name, partial(_visit, page, config, name), stage="importing the SDK") for name in names]
    return next(filter(None, visits), None)


async def _visit(page: Report, config: RunConfig, name: str) -> Opened:
    """List the configured splits, then open and close a session of the first task."""
    environment = config.environments[name]
    async with OpenRewardClient(config) as client:
        page.stage = ""  # until the server's first answer
        with as_session_error(f"asking {name} what it serves"):
            remote = await client.environment(name)
            stated = await remote.version() if environment.version else None
        refuse_other_build(name, config, stated)
        for url in environment.addresses:  # a session asks one of them
            with as_session_error(f"asking {url} what it serves"):
                await served_at(url)
        page.stage = "listing its tasks"
        if environment.base_url is None and api_key():
            await _check_required(page, config, name)
        splits = dict.fromkeys((*environment.splits, *environment.eval_splits))
        listings = [await open_listing(client, name, split) for split in splits]
        for listing in listings:
            if not listing.size:
                raise ConfigError(f"its split `{listing.split}` has no task. Name another one in `splits`")
        sizes = ", ".join(f"{listing.split} ({_counted(listing.size, 'task')})" for listing in listings)
        page.say("ok", f"{name}: {sizes}")
        (task,) = [task async for task in list_tasks(listings[0], [0])]
        session = client.session(task)
        page.stage = "opening a session"
        try:
            opening = await session.open(task)
        finally:
            await session.close()
    _say_opening(page, name, opening)
    return name, opening


def _say_opening(page: Report, name: str, opening: Opening) -> None:
    names = Toolbox(opening.tools).names
    line = f"{name}: a session opens with {_counted(len(opening.messages), 'message')}, tools: {names}"
    if opening.accepts_text_answer:
        page.say("ok", f"{line}; a plain answer ends it")
    elif opening.tools:
        page.say("ok", line)
    else:
        page.say("warning", f"{line}, and takes no plain answer, so the model can do nothing in it")


async def _check_required(page: Report, config: RunConfig, name: str) -> None:
    """Compare the configured secrets with those that the platform says the environment needs."""
    try:
        needed = await required_secrets(name, seconds=page.seconds / 2)
    except SessionError as exc:
        page.say("not checked", f"{name}: {exc}")
        return
    named = {secret.lower() for secret in (*config.secrets, *config.environments[name].secrets)}
    lacking = [secret for secret in needed if secret.lower() not in named and secret != PLATFORM_KEY]
    if lacking:
        advice = "Name them in `secrets` of the configuration"
        page.say("failed", f"{name}: needs the secrets {', '.join(lacking)}. {advice}")
    else:
        page.say("ok", f"{name}: all secrets that it needs are named: {', '.join(needed) or 'none'}")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
