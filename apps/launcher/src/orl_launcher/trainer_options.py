"""Command-line options that override the configuration: one for each field of `trainer`, and two budgets of `rollout`.

They are described where the fields are defined, and the configuration checks the values. Trainers' own flags are not
mirrored here, they stand after `--`.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from functools import partial

from msgspec import inspect, structs
from orl_core.config import RolloutConfig, SharedOptions, TrainerConfig, TrlOptions
from orl_core.config.fields import description_of, members_of

BUDGETS = {"max-response-len": "turn_tokens", "max-context-len": "context_tokens"}  # the cookbook's names
BESIDES = ("backend", "flags")  # fields that are no option: the positional argument, and what stands after `--`

_SHARED = SharedOptions.__struct_fields__
_FIELDS = {field.encode_name: field for field in structs.fields(TrainerConfig)}  # evaluates annotations: 2 ms
TRL = tuple(name for name, field in _FIELDS.items() if field.name in TrlOptions.__struct_fields__[len(_SHARED) :])
CLUSTERS = tuple(name for name, field in _FIELDS.items() if field.name not in TrlOptions.__struct_fields__)


def add_trainer_options(parser: argparse.ArgumentParser) -> None:
    """Add one option for each field of TrainerConfig: first those that every trainer obeys."""
    shared = parser.add_argument_group("options that every trainer obeys (they override `trainer` in the file)")
    add_budgets(shared)
    local = parser.add_argument_group("options of trl, which trains on this machine")
    clusters = parser.add_argument_group("options of slime and miles, which train on a cluster")
    groups = {**dict.fromkeys(TRL, local), **dict.fromkeys(CLUSTERS, clusters)}
    for name, field in _FIELDS.items():
        if field.name not in BESIDES:
            add_option(groups.get(name, shared), name)


def add_budgets(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the options for the budgets of a turn and of the context, as the cookbook's scripts name them."""
    kinds = {field.name: field.type for field in structs.fields(RolloutConfig)}
    for option, name in BUDGETS.items():
        _add(parser, option, f"rollout.{name}", kinds[name])


def add_option(parser: argparse._ActionsContainer, name: str) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the option for one field of TrainerConfig. `cli.config_of` reads the value."""
    _add(parser, name.replace("_", "-"), f"trainer.{name}", _FIELDS[name].type)


def _add(parser: argparse._ActionsContainer, option: str, path: str, kind: object) -> None:  # pyright: ignore[reportPrivateUsage]
    members = [member.type if isinstance(member, inspect.Metadata) else member for member in members_of(kind)]
    choices = [word for member in members if isinstance(member, inspect.LiteralType) for word in member.values]
    add = partial(
        parser.add_argument,
        f"--{option}",
        dest=path,
        default=argparse.SUPPRESS,
        help=description_of(kind),
    )
    if any(isinstance(member, inspect.BoolType) for member in members):
        add(action="store_const", const=True)
    elif choices:
        add(choices=choices)
    elif any(isinstance(member, inspect.StrType) for member in members):
        add(metavar="TEXT")
    else:
        add(metavar="N", type=_number)


def _number(text: str) -> float | str | None:
    """Return the number that `text` spells, or None for null; any other text, which the configuration refuses."""
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None if text == "null" else text
