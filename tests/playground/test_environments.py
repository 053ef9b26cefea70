"""The games without a server: seeds, splits, rewards, and that every task can be solved."""

import re

import pytest
from orl_playground.game import WIDER, WIDTH, Game, Task, tasks
from orl_playground.guess_number import GuessNumber, GuessWider
from orl_playground.server import ENVIRONMENTS

SPLITS = ("train", "test")


@pytest.mark.parametrize("environment", [GuessNumber, GuessWider])
def test_splits_are_disjoint_and_hundreds_each(environment):
    rows = {split: [tuple(sorted(task.items())) for task in environment.list_tasks(split)] for split in SPLITS}
    assert all(len(set(rows[split])) == len(rows[split]) >= 256 for split in SPLITS)
    assert not set(rows["train"]) & set(rows["test"])
    assert environment.list_tasks("train") == environment.list_tasks("train")
    with pytest.raises(ValueError, match="no split named 'dev'"):
        environment.list_tasks("dev")


def test_guess_number_has_tasks_for_fifty_steps_of_eight():
    assert len(tasks("train")) >= 400
    assert len({task.low for task in tasks("test")}) > 50


def test_the_splits_do_not_depend_on_the_process():
    assert tasks("train")[0] == Task(low=8, high=19, secret=16)


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("widths", [(WIDTH,), WIDER])
def test_every_game_of_guessing_is_won_by_halving(split, widths):
    for task in tasks(split, widths):
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


def test_both_games_of_guessing_have_the_same_tool_and_words():
    tools = [game.list_tools().tools for game in (GuessNumber, GuessWider)]
    assert [tool.model_dump() for tool in tools[0]] == [tool.model_dump() for tool in tools[1]]
    spec = {"low": 8, "high": 20, "secret": 9}
    assert GuessWider(spec).game == GuessNumber(spec).game


@pytest.mark.parametrize("environment", [GuessNumber, GuessWider])
def test_docstrings_teach(environment):
    assert re.search(r"\w+\.\n\n.+", environment.__doc__, re.S)
    assert all(tool.description for tool in environment.list_tools().tools)


def test_no_environment_inherits_another():
    """The SDK keeps the tasks of a class, and a subclass would answer with them."""
    served = [GuessNumber, GuessWider]
    assert tuple(one.__name__.lower() for one in served) == ENVIRONMENTS
    assert not any(environment in served for one in served for environment in one.__mro__[1:])
