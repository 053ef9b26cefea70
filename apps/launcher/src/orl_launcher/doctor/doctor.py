"""Run all checks of `orl doctor`, in the order in which a run needs things. A failed check does not stop the next.

Nothing is written or trained. An agent alone is played, for one turn.
"""

from __future__ import annotations

import argparse
import shlex
from contextlib import suppress
from pathlib import Path

from msgspec import structs
from orl_core.config import AgentConfig, RunConfig
from orl_core.config.limits import context_tokens_of, limits_of
from orl_core.errors import ConfigError, OrlError
from orl_core.render import Renderer
from orl_core.trajectory import RolloutSpec
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.environment import list_tasks, open_listing
from orl_rollout.recognised_engine import RecognisedEngine
from orl_rollout.runtime.player import Player, load_player

from orl_launcher import cli, invocation
from orl_launcher.checkpoints import refuse_missing
from orl_launcher.configuration import resolve
from orl_launcher.doctor.engine import check_engine
from orl_launcher.doctor.environments import Opened, check_environments, check_secrets
from orl_launcher.doctor.fit import check_fit
from orl_launcher.doctor.model import check_prompt, check_tokenizer
from orl_launcher.doctor.report import Report, Verdict
from orl_launcher.playground import is_made, made_model, playground, served_here
from orl_launcher.reports import DoctorReport
from orl_launcher.trainers import WOULD_NOT_START, find_trainer, missing_tasks, plan_run


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
    reader = None if model is None else check_tokenizer(page, config, model)
    page.group("first prompt")
    ids: tuple[int, ...] = ()
    if opened and reader:
        ids = check_prompt(page, config, opened, reader, full=arguments.full)
    else:
        missing = ["an environment that opens"] * (not opened) + ["a certified tokenizer"] * (not reader)
        page.say(Verdict.UNCHECKED, f"needs {' and '.join(missing)}")
    if arguments.fit:
        page.group("fit")
        if opened and reader and not config.agent:
            check_fit(page, config, model, arguments.player)
        else:
            page.say(Verdict.UNCHECKED, "needs an environment that opens, a certified tokenizer, and no agent")
    page.group("engine")
    if arguments.engine:
        check_engine(page, config, arguments.engine, ids)
    else:
        page.say(Verdict.UNCHECKED, "the trainer starts its own engine. To check a running one, give --engine URL")
    if config.agent:
        page.group("agent")
        check_agent(page, config, reader[1] if opened and reader else None, arguments.engine)
    page.group("trainer")
    if plans:
        _trainer(page, config, folder, arguments)
    else:
        page.say(Verdict.UNCHECKED, "flags and sizes: `orl doctor` or --dry-run checks them")
    return page.conclude()


def _configuration(page: Report, arguments: argparse.Namespace) -> tuple[RunConfig, Path] | None:
    """Resolve the configuration; without one, nothing else can be checked."""
    page.group("configuration")
    try:
        config, folder, _ = resolve(arguments)
    except OrlError as exc:
        page.say(Verdict.FAILED, str(exc))
        page.say(Verdict.UNCHECKED, "all else, because it needs the configuration")
        return None
    page.scrubber = Scrubber.of(config)
    page.say(Verdict.OK, f"{arguments.config}: trainer {config.trainer.backend}, {', '.join(config.environments)}")
    return config, folder


def _default_model(page: Report, backend: str) -> str:
    """Return the model that a trainer takes if none is named; "" if it takes none."""
    model = ""
    with suppress(cli.UsageError):  # no such trainer here, which its own check says
        model = find_trainer(backend).default_model
    if model:
        page.say(Verdict.OK, f"no model is named: {backend} takes {model}. Another one: --model, or trainer.model")
    return model


def _environments(page: Report, config: RunConfig) -> Opened | None:
    try:
        with playground(config) as reachable:
            return check_environments(page, reachable)
    except OrlError as exc:
        missing = served_here(config)
        page.say(Verdict.FAILED, f"{', '.join(missing)}: {exc}")
        return check_environments(page, config, missing=missing)


def _model(page: Report, config: RunConfig, named: str) -> str | None:
    """Return the path of a model of the playground, else the `named` one; None if it is not there."""

    def look() -> bool:
        refuse_missing(config)
        return is_made(config)

    ready = page.attempt("model", look)
    if ready is False:
        page.say(Verdict.UNCHECKED, f"{named}: made when `orl train` or `orl rollout` first needs it")
    return page.attempt(named, lambda: made_model(config)[0] or named) if ready else None


def _trainer(page: Report, config: RunConfig, folder: Path, arguments: argparse.Namespace) -> None:
    """Find the adapter and let it plan a run, which starts nothing."""
    backend, python = str(config.trainer.backend), arguments.python
    if missing := missing_tasks(config):
        page.say(Verdict.FAILED, missing)
    work = lambda: plan_run(config, folder, python=python)  # noqa: E731
    plan = page.attempt(backend, work, stage="loading the trainer")
    if plan is None:
        return
    options = {"--config": arguments.config, "--model": getattr(arguments, "trainer.model", None), "--python": python}
    words = shlex.join(word for option, value in options.items() if value for word in (option, value))
    show = f"To show the plan: {invocation()} train {backend} {words} --dry-run"
    for problem in plan.problems:
        page.say(Verdict.WARNING, f"{backend}: {WOULD_NOT_START}: {problem}")
    if plan.problems:
        page.note(show)
    else:
        page.say(Verdict.OK, f"{backend}: flags and sizes fit. {show}")
    if plan.engine:
        page.say(Verdict.OK, f"{backend}: {plan.engine}")
    if config.reward and not plan.problems:
        page.say(Verdict.OK, f"reward: {config.reward} can be imported")
    if plan.memory:
        page.note(plan.memory)
    for note in plan.notes:
        page.say(Verdict.UNCHECKED, f"{backend}: {note}")


def check_agent(page: Report, config: RunConfig, renderer: Renderer | None, url: str | None) -> None:
    """Load the agent, and play one turn with it against the engine at `url`. `renderer` is None if it is unknown.

    The turn is played as any rollout is, in the first environment, and is not recorded.
    """
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
    async with OpenRewardClient(config) as client, RecognisedEngine(url, context_tokens=context) as engine:
        listing = await open_listing(client, name, config.environments[name].splits[0])
        task = await anext(list_tasks(listing, [0]))
        limits = structs.replace(limits_of(config, name), max_turns=1)
        job = RolloutSpec(task=task, rollout_id="orl-doctor", limits=limits, sampling={"temperature": 1.0})
        trajectory = await player(job, session=client.session(task), renderer=renderer, engine=engine)
    if trajectory.error:
        raise OrlError(trajectory.error)
    (turn,) = trajectory.turns
    calls = f", {len(turn.results)} calls of tools" if turn.results else ""
    return f"played one turn in {name}: {len(turn.action_ids)} ids sampled{calls}; it ended with {trajectory.ending}"
