"""The servers of examples/environments, with their packages: `just nightly tasks` installs and plays them.

Each runs as its first lines say, in an environment of its own. The first test needs none of the packages.
"""

from __future__ import annotations

import random
import re
import socket
import subprocess
import time
import tomllib
from collections.abc import Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct, structs
from orl_core.config import RunConfig, load_config
from orl_core.limits import Limits
from orl_core.messages import Message, TextBlock, text_of
from orl_core.task import Task
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory
from orl_launcher.episodes import ScriptedPlayer
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.client import open_listing
from orl_rollout.openreward.environment import list_tasks
from orl_testing import ScriptedEngine

from tests.kit.episodes import RENDERER
from tests.servers.process import installed

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "environments"
START_SECONDS = 120.0
EPISODES = 20


class Game(Struct, frozen=True):
    """One file in configs/tasks, its server and its beginner."""

    name: str
    script: str
    player: str
    wins: tuple[int, int]  # of EPISODES, with the seed below


GAMES = (
    Game("reasoning-gym", "reasoning_gym_needle", "reader", (1, 9)),
    Game("textarena", "textarena_bandit", "presser", (1, 11)),
    Game("textworld-express", "textworld_express_twc", "tidier", (1, 9)),
)


def beginners(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("beginners")


def pinned(script: str) -> list[str]:
    """Return the dependencies that a script's first lines name."""
    text = (FOLDER / f"{script}.py").read_text("utf-8")
    header = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", text, re.MULTILINE)
    assert header, script
    return tomllib.loads(re.sub(r"^# ?", "", header[1], flags=re.MULTILINE))["dependencies"]


@pytest.mark.parametrize("game", GAMES, ids=lambda game: game.name)
def test_script_pins_what_it_needs(game: Game) -> None:
    assert all("==" in dependency for dependency in pinned(game.script))
    assert len((FOLDER / f"{game.script}.py").read_text("utf-8").splitlines()) <= 66
    (environment,) = load_config(ROOT / "configs" / "tasks" / f"{game.name}.yaml").environments.values()
    port = str(environment.base_url).rpartition(":")[2]
    assert f"else {port})" in (FOLDER / f"{game.script}.py").read_text("utf-8")
    assert f"script={game.script} player={game.player} port={port} ;;" in (FOLDER / "train.sh").read_text("utf-8")


@pytest.mark.parametrize(
    ("player", "text", "answers"),
    [
        ("reader", "Ann likes tea. Bo hates rain. \nWho hates rain?", {"Ann", "Bo"}),
        ("presser", "You are in a room with 2 buttons: red, blue. Each", {"red", "blue"}),
        ("tidier", "A room.\nActions: take cup, open box", {"take cup", "open box"}),
    ],
)
def test_beginner_answers_with_what_it_read(
    player: str, text: str, answers: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    play = getattr(beginners(monkeypatch), player)
    played = [play([Message(role="user", content=(TextBlock(text=text),))]) for _ in range(50)]
    assert {value for _, arguments in played for value in arguments.values()} == answers


@pytest.fixture(scope="module", params=GAMES, ids=lambda game: game.name)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[Game, str]]:
    """Install what the script names, and serve it."""
    game: Game = request.param
    folder = tmp_path_factory.mktemp("tasks")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    python = installed(folder / "venv", pinned(game.script))
    command = [str(python), "-W", "ignore", str(FOLDER / f"{game.script}.py"), str(port)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            for _ in range(int(START_SECONDS * 4)):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, (folder / "log").read_text("utf-8")[-2000:]
                time.sleep(0.25)
            yield game, f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(20)


def config_of(game: Game, url: str) -> RunConfig:
    config = load_config(ROOT / "configs" / "tasks" / f"{game.name}.yaml")
    environments = {name: structs.replace(one, base_url=url) for name, one in config.environments.items()}
    return structs.replace(config, environments=environments)


async def listed(client: OpenRewardClient, name: str, split: str) -> list[Task]:
    listing = await open_listing(client, name, split)
    return [task async for task in list_tasks(listing, range(listing.size))]


@pytest.mark.tasks
async def test_beginner_wins_sometimes(served: tuple[Game, str], monkeypatch: pytest.MonkeyPatch) -> None:
    game, url = served
    config = config_of(game, url)
    (name,) = config.environments
    function = getattr(beginners(monkeypatch), game.player)
    player = ScriptedPlayer(lambda messages, _: function(messages), game.player)
    random.seed(0)
    async with OpenRewardClient(config) as client:
        train, test = [await listed(client, name, split) for split in ("train", "test")]
        assert len(test) >= 128
        assert test == await listed(client, name, "test")
        assert not {repr(task.task_spec) for task in train} & {repr(task.task_spec) for task in test}
        episodes: list[Trajectory] = []
        for number, task in enumerate(test[:EPISODES]):
            job = RolloutSpec(task=task, limits=Limits(max_turns=8, context_tokens=8192), rollout_id=str(number))
            engine = ScriptedEngine([])
            episodes.append(await player(job, session=client.session(task), renderer=RENDERER, engine=engine))
    assert {(episode.stop_reason, episode.error) for episode in episodes} == {(StopReason.FINISHED, "")}
    assert all(text_of(episode.messages[-1].content) for episode in episodes)
    assert max(len(text_of(message.content)) for episode in episodes for message in episode.messages) < 1500
    assert {sum(episode.rewards) for episode in episodes} == {0.0, 1.0}
    least, most = game.wins
    assert least <= sum(sum(episode.rewards) for episode in episodes) <= most
