"""Command-line options that override `trainer` in the configuration: one for each of its fields, described there.

A value is text until the configuration checks it. Trainers' own flags are not mirrored here, they stand after `--`.
"""

from __future__ import annotations

import argparse
import json

from msgspec import inspect, structs
from orl_core.config import SharedOptions, TrainerConfig
from orl_core.config.fields import description_of, members_of

BESIDES = ("backend", "flags")  # fields that are no option: the positional argument, and what stands after `--`


def add_trainer_options(parser: argparse.ArgumentParser) -> None:
    """Add one option for each field of TrainerConfig: first those that every trainer obeys."""
    shared = parser.add_argument_group("options that every trainer obeys (they override `trainer` in the file)")
    clusters = parser.add_argument_group("options of slime and miles, which train on a cluster")
    for field in structs.fields(TrainerConfig):
        if field.name not in BESIDES:
            add_option(shared if field.name in SharedOptions.__struct_fields__ else clusters, field.encode_name)


def add_option(parser: argparse._ActionsContainer, name: str) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the option for one field of TrainerConfig."""
    kind = next(field.type for field in structs.fields(TrainerConfig) if field.encode_name == name)
    members = members_of(kind)
    option, dest, meaning = f"--{name.replace('_', '-')}", f"trainer.{name}", description_of(kind)
    if any(isinstance(member, inspect.BoolType) for member in members):
        parser.add_argument(option, dest=dest, action="store_const", const="true", help=meaning)
    elif choices := [word for member in members if isinstance(member, inspect.LiteralType) for word in member.values]:
        parser.add_argument(option, dest=dest, choices=choices, help=meaning)
    elif any(isinstance(member, inspect.StrType) for member in members):
        parser.add_argument(option, dest=dest, type=quoted, metavar="TEXT", help=meaning)
    else:
        parser.add_argument(option, dest=dest, metavar="N", help=meaning)


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    """Return the overrides that the given options mean: `trainer.lr=3e-4`."""
    given = vars(arguments).items()
    return [f"{path}={value}" for path, value in given if path.startswith("trainer.") and value is not None]


def quoted(text: str) -> str:
    """Return `text` as a YAML string: JSON's, with all beyond printable ASCII escaped the way that YAML reads."""
    written = json.dumps(text, ensure_ascii=False)
    return "".join(character if " " <= character <= "~" else f"\\U{ord(character):08X}" for character in written)
