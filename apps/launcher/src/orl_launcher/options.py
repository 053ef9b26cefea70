"""Command-line options that are made of Structs: for `trainer`, for the sections of a trainer, and two budgets.

They are described where the fields are defined, and the configuration checks the values. Trainers' own flags are not
mirrored here, they follow `--`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby

from msgspec import Struct, inspect, structs
from orl_core.config import RolloutConfig, TrainerConfig
from orl_core.config.fields import description_of, members_of, option_of

from orl_launcher import cli, trainers

BUDGETS = {"max-response-len": "turn_tokens", "max-context-len": "context_tokens"}  # the cookbook's names
PLAYED = ("model", *BUDGETS)  # what a command without a trainer takes, too
NO_OPTIONS = ("backend", "flags", "sections")  # the positional argument, what follows `--`, and the trainers' own


class Option(Struct, frozen=True):
    """The option `--name` for the value at `path` of the configuration, of the type `kind`."""

    name: str
    path: str
    kind: object


def add_own(parser: cli.Parser, *, converts: bool = False) -> None:
    """Add the options of the trainer that the first word names. What follows `--` is left to it, or to its tool."""
    parser.elsewhere = "; the trainer comes first, and options that only it knows come after `--`"
    here, chosen = trainers.installed(), [*parser.words, ""][0]
    own = options_of(chosen, converts=converts) if chosen in here else ()
    for title, options in groupby(own, lambda option: option.path.rpartition(".")[0]):
        group = parser.add_argument_group(f"options of {chosen} (`{title}` in the file)")
        for option in options:
            _add(group, option)
    parser.epilog = "\n".join([f"{parser.epilog}", *(f"  {parser.prog} {name} --help" for name in here)])


def add_shared(parser: argparse._ActionsContainer, names: Sequence[str] = ()) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the options that every trainer obeys, or those of them with the `names`."""
    kinds = {field.name: field.type for field in structs.fields(RolloutConfig)}
    budgets = [Option(option, f"rollout.{name}", kinds[name]) for option, name in BUDGETS.items()]
    shared = {option.name: option for option in (*budgets, *_of_struct(TrainerConfig, "trainer"))}
    for name in names or shared:
        _add(parser, shared[name])


def options_of(trainer: str, *, converts: bool = False) -> Iterator[Option]:
    """Yield the options for the sections of a trainer that is installed; of a conversion alone if it `converts`."""
    adapter = trainers.find_trainer(trainer)
    for section, kind in adapter.sections.items():
        for option in _of_struct(kind, f"trainer.{section}"):
            if not converts or option.path.removeprefix("trainer.") in adapter.conversion_options:
                yield option


def _of_struct(kind: type[Struct], path: str) -> Iterator[Option]:
    for field in structs.fields(kind):
        if field.name not in NO_OPTIONS:
            name = option_of(field.type) or field.encode_name
            spelled = name.format(section=path.rpartition(".")[2]).replace("_", "-")
            yield Option(spelled, f"{path}.{field.encode_name}", field.type)


def _add(parser: argparse._ActionsContainer, option: Option) -> None:  # pyright: ignore[reportPrivateUsage]
    members = [member.type if isinstance(member, inspect.Metadata) else member for member in members_of(option.kind)]
    choices = [word for member in members if isinstance(member, inspect.LiteralType) for word in member.values]
    add = partial(
        parser.add_argument,
        f"--{option.name}",
        dest=option.path,
        default=argparse.SUPPRESS,
        help=description_of(option.kind),
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
