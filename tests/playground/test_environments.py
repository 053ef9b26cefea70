"""The games without a server: seeds, splits, rewards, and that every task can be solved."""

import random
import re
from typing import Any

import pytest
from orl_playground import guess_number, guess_wider, mystery
from orl_playground.guess_number import Game, GuessNumber, consistent_baseline, uniform_baseline
from orl_playground.guess_wider import GuessWider
from orl_playground.mystery import Mystery, Room, Suspect, case
from orl_playground.server import ENVIRONMENTS, environment_classes
from orl_playground.workshop import Delivery, Line, Part, Workshop, order

SPLITS = ("train", "test")


@pytest.mark.parametrize("environment", [GuessNumber, GuessWider, Mystery, Workshop])
def test_splits_are_disjoint_and_hundreds_each(environment):
    rows = {split: [tuple(sorted(task.items())) for task in environment.list_tasks(split)] for split in SPLITS}
    assert all(len(set(rows[split])) == len(rows[split]) >= 256 for split in SPLITS)
    assert not set(rows["train"]) & set(rows["test"])
    assert environment.list_tasks("train") == environment.list_tasks("train")
    with pytest.raises(ValueError, match="no split named 'dev'"):
        environment.list_tasks("dev")


def test_guess_number_has_tasks_for_fifty_steps_of_eight():
    assert len(guess_number.tasks("train")) >= 400
    assert len({task.low for task in guess_number.tasks("test")}) > 50


def test_the_splits_do_not_depend_on_the_process():
    assert guess_number.tasks("train")[0].model_dump() == {"low": 8, "high": 19, "secret": 16}
    assert case(0) == case(0)
    assert order(0) == order(0)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("games", [guess_number, guess_wider])
def test_every_game_of_guessing_is_won_by_halving(split, games):
    for task in games.tasks(split):
        game = Game(low=task.low, high=task.high, secret=task.secret)
        reward = 0.0
        while not game.finished:
            assert game.low <= task.secret <= game.high
            reward = game.guess((game.low + game.high) // 2)[1]
        assert reward == 1.0


def test_replies_name_what_remains():
    game = Game(low=20, high=31, secret=26)
    assert game.guess(22) == ("higher: 23 to 31", 0.0)
    assert game.guess(99) == ("lower: 23 to 31", 0.0)
    assert game.guess(3) == ("higher: 23 to 31", 0.0)
    assert not game.finished
    assert game.guess(30) == ("out of guesses: it was 26", 0.0)
    assert game.finished


def test_baselines_agree_with_simulation():
    rng = random.Random(5)
    wins = {"consistent": 0, "uniform": 0}
    games = 20_000
    for player in wins:
        for _ in range(games):
            game = Game(low=1, high=12, secret=rng.randint(1, 12))
            while not game.finished:
                low, high = (game.low, game.high) if player == "consistent" else (1, 12)
                wins[player] += game.guess(rng.randint(low, high))[1] == 1.0
    assert wins["consistent"] / games == pytest.approx(consistent_baseline(), abs=0.015)
    assert wins["uniform"] / games == pytest.approx(uniform_baseline(), abs=0.015)
    assert consistent_baseline(15, 4) < 1.0 == consistent_baseline(1, 1)


@pytest.mark.parametrize("split", SPLITS)
def test_every_mystery_is_determined_by_its_evidence(split):
    seeds: list[Any] = [task["seed"] for task in Mystery.list_tasks(split)]
    for mystery_case in map(case, seeds):
        alone = [suspect for suspect in Suspect if mystery_case.check_alibi(suspect).startswith("Nobody")]
        scenes = [place for place in Room if "in order" not in mystery_case.inspect(place)]
        assert len(alone) == len(scenes) == 1
        weapon = next(w for w, wound in mystery.WOUNDS.items() if wound in mystery_case.inspect(scenes[0]))
        assert mystery_case.score(alone[0], weapon, scenes[0]) == 1.0
        # Each alibi is mutual, away from the scene, and never the culprit's word.
        for suspect, witness in mystery_case.witnesses.items():
            assert mystery_case.witnesses[witness] == suspect != mystery_case.culprit
            assert mystery_case.claims[suspect] == mystery_case.claims[witness] != mystery_case.place


def test_an_accusation_earns_a_share_for_each_right_part():
    mystery_case = case(3)
    other = next(suspect for suspect in Suspect if suspect is not mystery_case.culprit)
    assert mystery_case.score(other, mystery_case.weapon, mystery_case.place) == 0.5
    elsewhere = next(place for place in Room if place is not mystery_case.place)
    assert mystery_case.score(mystery_case.culprit, mystery_case.weapon, elsewhere) == 0.75


@pytest.mark.parametrize("split", SPLITS)
def test_every_order_has_items_and_tools_reach_the_total(split):
    seeds: list[Any] = [task["seed"] for task in Workshop.list_tasks(split)]
    for wanted in map(order, seeds):
        lines = [line for line in wanted.lines if wanted.available(line)]
        assert lines
        goods = sum(wanted.prices[line.part] * wanted.available(line) for line in lines)
        express = 500 if wanted.delivery is Delivery.EXPRESS else 0
        assert wanted.total() == goods - goods * wanted.discount // 100 + express


def test_both_games_of_guessing_have_the_same_tool_and_words():
    tools = [game.list_tools().tools for game in (GuessNumber, GuessWider)]
    assert [tool.model_dump() for tool in tools[0]] == [tool.model_dump() for tool in tools[1]]
    spec = {"low": 8, "high": 20, "secret": 9}
    assert GuessWider(spec).game == GuessNumber(spec).game


def test_tools_have_real_schemas():
    schema: Any = next(tool.input_schema for tool in Workshop.list_tools().tools if tool.name == "quote")
    assert schema["properties"]["lines"]["items"] == {"$ref": "#/$defs/Line"}
    assert schema["$defs"]["Line"]["properties"]["quantity"]["maximum"] == 99
    assert schema["$defs"]["Part"]["enum"] == [part.value for part in Part]
    assert {tool.name for tool in Mystery.list_tools().tools} == {"interview", "check_alibi", "inspect_room", "accuse"}
    terminal = Workshop.terminal_tool()
    assert terminal is not None
    assert (terminal.name, terminal.arg) == ("answer", "text")
    with pytest.raises(ValueError, match="less than or equal to 99"):
        Line(part=Part.BOLT, quantity=100)


@pytest.mark.parametrize("environment", [GuessNumber, GuessWider, Mystery, Workshop])
def test_docstrings_teach(environment):
    assert re.search(r"\w+\.\n\n.+", environment.__doc__, re.S)
    assert all(tool.description for tool in environment.list_tools().tools)


def test_no_environment_inherits_another():
    """The SDK keeps the tasks of a class, and a subclass would answer with them."""
    served = environment_classes(ENVIRONMENTS)
    assert not any(environment in served for one in served for environment in one.__mro__[1:])
