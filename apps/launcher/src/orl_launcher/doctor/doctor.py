"""Run all checks of `orl doctor`, in the order in which a run needs things. A failed check does not stop the next.

Nothing is written or trained. Only --fit plays. Of a secret's value only presence and length are read (law L6).
"""

from __future__ import annotations

import argparse
import os
import shlex
from contextlib import suppress
from functools import partial
from pathlib import Path

from msgspec import structs
from orl_core import ConfigError, OrlError, Renderer, RunConfig, SessionError
from orl_core.render.tokenizer import Tokenizer
from orl_rollout import Opening, OpenRewardClient
from orl_rollout.edge.secrets import ENCODED, PLATFORM_KEY, SHORTEST, Scrubber, SecretEntry, all_entries, api_key, unset
from orl_rollout.loop.tool_check import Toolbox
from orl_rollout.openreward.client import open_listing
from orl_rollout.openreward.environment import list_tasks, served_at
from orl_rollout.openreward.faults import as_session_error
from orl_rollout.openreward.platform import required_secrets
from orl_rollout.run_folder.environments import refuse_other_build
from orl_rollout.runtime.runtime import check_renderer, load_player
from orl_rollout.tokenizer.tokenizer import HFTokenizer, open_renderer, open_tokenizer

from orl_launcher import cli, invocation
from orl_launcher.configuration import refuse_missing, resolve
from orl_launcher.doctor.engine import check_engine
from orl_launcher.doctor.episodes import check_fit
from orl_launcher.doctor.report import Report
from orl_launcher.playground import is_made, made_model, playground, served_here
from orl_launcher.reports import DoctorReport
from orl_launcher.trainers import WOULD_NOT_START, find_trainer, missing_tasks, plan_run

HEAD, TAIL = 1000, 300  # characters of a prompt that are shown of a longer one
Reader = tuple[Tokenizer, Renderer]  # the renderer is certified


def check_up(arguments: argparse.Namespace, *, plans: bool = True) -> DoctorReport:
    """Print the page. Return its findings. Unless it `plans` a run, no trainer is imported."""
    page = Report(cli.console(), arguments.timeout)
    resolved = _configuration(page, arguments)
    if resolved is None:
        return page.conclude()
    config, folder = resolved
    named = config.trainer.model or _default_model(page, config.trainer.backend or "")
    check_secrets(page, config)
    page.group("environments")
    opened = _environments(page, config)
    page.group("tokenizer")
    model = _model(page, config, named)
    playing = structs.replace(config, trainer=structs.replace(config.trainer, model=model))
    reader = None if model is None else check_tokenizer(page, config, model)
    page.group("first prompt")
    ids: tuple[int, ...] = ()
    if opened and reader:
        ids = check_prompt(page, config, opened, reader, full=arguments.full)
    else:
        missing = ["an environment that opens"] * (not opened) + ["a certified tokenizer"] * (not reader)
        page.say("not checked", f"needs {' and '.join(missing)}")
    if arguments.fit or arguments.player:
        page.group("fit")
        if opened and reader and not config.agent:
            check_fit(page, playing, arguments.player)
        else:
            page.say("not checked", "needs an environment that opens, a certified tokenizer, and no agent")
    page.group("engine")
    if arguments.engine:
        check_engine(page, config, arguments.engine, ids)
    else:
        page.say("not checked", "the trainer starts its own engine. To check a running one, give --engine URL")
    if config.agent:
        page.group("agent")
        if page.attempt("agent", lambda: load_player(config)):
            page.say("ok", "the agent can be loaded. To play a task with it: orl rollout --agent ... --max-tasks 1")
    page.group("trainer")
    if plans:
        _trainer(page, config, folder, arguments)
    else:
        page.say("not checked", "flags and sizes: `orl doctor` or --dry-run checks them")
    return page.conclude()


def _configuration(page: Report, arguments: argparse.Namespace) -> tuple[RunConfig, Path] | None:
    """Resolve the configuration; without one, nothing else can be checked."""
    page.group("configuration")
    resolved = page.attempt("configuration", lambda: resolve(arguments))
    if resolved is None:
        page.say("not checked", "all else, because it needs the configuration")
        return None
    config, folder, _ = resolved
    page.scrubber = Scrubber.of(config)
    page.say("ok", f"{arguments.config}: trainer {config.trainer.backend}, {', '.join(config.environments)}")
    return config, folder


def _default_model(page: Report, backend: str) -> str:
    """Return the model that a trainer takes if none is named; "" if it takes none."""
    model = ""
    with suppress(cli.UsageError):  # no such trainer here, which its own check says
        model = find_trainer(backend).default_model
    if model:
        page.say("ok", f"no model is named: {backend} takes {model}. Another one: --model, or trainer.model")
    return model


def _environments(page: Report, config: RunConfig) -> Opened | None:
    try:
        with playground(config) as reachable:
            return check_environments(page, reachable)
    except OrlError as exc:
        missing = served_here(config)
        page.say("failed", f"{', '.join(missing)}: {exc}")
        return check_environments(page, config, missing=missing)


def _model(page: Report, config: RunConfig, named: str) -> str | None:
    """Return the path of a model of the playground, else the `named` one; None if it is not there."""

    def look() -> bool:
        refuse_missing(config)
        return is_made(config)

    ready = page.attempt("model", look)
    if ready is False:
        page.say("not checked", f"{named}: made when `orl train` or `orl rollout` first needs it")
    return page.attempt(named, lambda: made_model(config)[0] or named) if ready else None


def _trainer(page: Report, config: RunConfig, folder: Path, arguments: argparse.Namespace) -> None:
    """Find the adapter and let it plan a run, which starts nothing."""
    backend, python = str(config.trainer.backend), arguments.python
    if missing := missing_tasks(config):
        page.say("failed", missing)
    plan = page.attempt(backend, lambda: plan_run(config, folder, python=python), stage="loading the trainer")
    if plan is None:
        return
    options = {"--config": arguments.config, "--model": getattr(arguments, "trainer.model", None), "--python": python}
    words = shlex.join(word for option, value in options.items() if value for word in (option, value))
    show = f"To show the plan: {invocation()} train {backend} {words} --dry-run"
    for problem in plan.problems:
        page.say("warning", f"{backend}: {WOULD_NOT_START}: {problem}")
    if plan.problems:
        page.note(show)
    else:
        page.say("ok", f"{backend}: flags and sizes fit. {show}")
    if plan.engine:
        page.say("ok", f"{backend}: {plan.engine}")
    if config.reward and not plan.problems:
        page.say("ok", f"reward: {config.reward} can be imported")
    if plan.memory:
        page.note(plan.memory)
    for note in plan.notes:
        page.say("not checked", f"{backend}: {note}")


def check_tokenizer(page: Report, config: RunConfig, model: str) -> Reader | None:
    """Certify the model's tokenizer. Return None if it cannot be trusted."""
    if not model:
        page.say("failed", "no model. Give --model, or set trainer.model in the file")
        return None
    advice = "--model takes the folder of a checkpoint, or a name on a reachable model hub"
    tokenizer = page.attempt(model, lambda: open_tokenizer(config, model), advice=advice, stage="loading the tokenizer")
    if tokenizer is None:
        return None
    renderer = page.attempt(model, lambda: open_renderer(config, tokenizer), stage="certifying the chat template")
    if renderer is None:
        return None
    _say_certificate(page, model, renderer)
    if page.attempt("thinking", lambda: check_renderer(config, renderer) or True):
        page.say("ok", _thinking(config, tokenizer))
    return tokenizer, renderer


def _thinking(config: RunConfig, tokenizer: HFTokenizer) -> str:
    """Return the value of `thinking` and the variables that the chat template gets."""
    variables = ", ".join(f"{name}={value!r}" for name, value in tokenizer.chat_template.variables.items())
    setting = "not set" if config.thinking is None else str(config.thinking).lower()
    masked = "" if config.rollout.train_on.reasoning else "; reasoning does not train"
    return f"thinking: {setting}{masked}; the chat template gets {variables or 'no variable'}"


def _say_certificate(page: Report, model: str, renderer: Renderer) -> None:
    certificate = renderer.certificate
    passed = sum(check.passed for check in certificate.checks)
    page.say("ok", f"{model}: certified, {passed} checks passed; format of tool calls: {renderer.tool_format}")
    for check in certificate.checks:
        if not check.passed:
            page.say("warning", f"{check.check}: {check.detail}")
    for note in certificate.notes:
        page.note(note)
    if not certificate.user_turns:
        page.note("the template takes no user message after an action, so no reminder to call a tool is possible")
    if certificate.calls_per_action is not None:
        page.note(f"the template takes results of at most {certificate.calls_per_action} calls in one action")


def check_prompt(page: Report, config: RunConfig, opened: Opened, reader: Reader, *, full: bool) -> tuple[int, ...]:
    """Render the opening, compare its length with the context and show it. Return its ids, () if that fails."""
    (name, opening), (tokenizer, renderer) = opened, reader
    ids = page.attempt(name, lambda: renderer.open(opening.messages, opening.tools))
    if ids is None:
        return ()
    context, turn = config.context_tokens, config.rollout.turn_tokens
    room = context - len(ids)
    line = f"{name}: {len(ids)} ids of a context of {context}"
    wider = "Raise rollout.context_tokens (--max-context-len)"
    if room <= 0:
        page.say("failed", f"{line}: no turn can be played. {wider}")
    elif room < turn:
        page.say("warning", f"{line}: {room} are left, fewer than rollout.turn_tokens ({turn}). {wider}")
    else:
        page.say("ok", line)
    page.note(_shortened(page.scrubber.scrub(tokenizer.decode(ids)), full=full))
    return ids


def _shortened(text: str, *, full: bool) -> str:
    left_out = len(text) - HEAD - TAIL
    if full or left_out <= 0:
        return text
    return f"{text[:HEAD]}\n[… {left_out} characters left out; --full shows them]\n{text[-TAIL:]}"


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
