"""Command-line options that are made of Structs: for `trainer`, for the sections of a trainer, and two budgets.

They are described where the fields are defined, and the configuration checks the values. Trainers' own flags are not
mirrored here, they follow `--`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct, inspect, structs
from orl_core.config import RolloutConfig, RunConfig, TrainerConfig, load_config
from orl_core.config.fields import description_of, members_of, option_of
from orl_core.errors import ConfigError

from orl_launcher import cli, invocation, trainers

BUDGETS = {"max-response-len": "turn_tokens", "max-context-len": "context_tokens"}  # the cookbook's names
CONFIGURED = ("trainer.", "rollout.", "agent")  # how the options that override the configuration are named
NO_OPTIONS = ("backend", "flags", "sections")  # the positional argument, what follows `--`, and the trainers' own


def config_of(arguments: argparse.Namespace, bare: dict[str, Any] | None = None) -> RunConfig:
    """Return the configuration of `--config`, the options that override it, and `--set`: the last one wins.

    `bare` replaces the file if a command needs none. Its trainer, and the date that chat templates show, are fixed.

    Raises:
        ConfigError: it is wrong.
    """
    from orl_core.config.agent import LOOPS_OWN
    from orl_core.config.load import config_without_file
    from orl_core.limits import Budgets
    from orl_rollout.edge.secrets import Scrubber, refuse_repeats
    from orl_rollout.logs import keep_out
    from orl_rollout.run_folder.config_file import dated

    options = {path: value for path, value in vars(arguments).items() if path.startswith(CONFIGURED)}
    if "agent" in options:  # the file's budgets of the built-in loop are replaced with it
        options |= {f"rollout.{name}": getattr(Budgets(), name) for name in LOOPS_OWN}
    if arguments.config is not None and not Path(arguments.config).exists():
        raise ConfigError(f"{arguments.config}: no such file. Give --config; `{invocation()} init` writes a file")
    if arguments.config is None:
        config = dated(config_without_file(deepcopy(bare or {}), arguments.overrides, options))
    else:
        config = dated(load_config(Path(arguments.config), arguments.overrides, options))
    config = trainers.resolved(config, getattr(arguments, "extra", ()))
    keep_out(Scrubber.of(config))
    refuse_repeats(config)
    return config


class Option(Struct, frozen=True):
    """The option `--name` for the value at `path` of the configuration, of the type `kind`."""

    name: str
    path: str
    kind: object


class TrainerParser(cli.PassingParser):
    """Parser with the options of one trainer: the one that the command line names, or else its file."""

    trainer: str = ""
    converts = False  # the options of a conversion alone

    def prepare(self, words: Sequence[str]) -> None:
        """Add the options of the trainer that `words` name."""
        if (name := self.named(words)) in trainers.installed():
            self.trainer = name
            groups: dict[str, Any] = {}
            for option in options_of(name, converts=self.converts):
                title = option.path.rpartition(".")[0]
                if title not in groups:
                    groups[title] = self.add_argument_group(f"options of {name} (`{title}` in the file)")
                _add(groups[title], option)

    def named(self, words: Sequence[str]) -> str:
        """Return the name of the trainer that `words` name; "" if they name none that is installed."""
        takes_value = {name for action in self._actions for name in action.option_strings if action.nargs is None}
        bare = [word for before, word in zip(["", *words], words, strict=False) if before not in takes_value]
        return next((word for word in bare if word in trainers.installed()), "")

    def unknown(self, option: str, known: Sequence[str]) -> NoReturn:
        """Name the trainers that have the option."""
        owners = [
            name
            for name in trainers.installed()
            if option in {f"--{each.name}" for each in options_of(name, converts=self.converts)}
        ]
        if owners:
            here = f"the trainer is {self.trainer}" if self.trainer else "no trainer is named"
            self.error(
                f"{option} is an option of {' and '.join(owners)}, and {here}. Leave it out, or change the trainer"
            )
        super().unknown(option, known)


def add_trainer(parser: cli.Parser, name: str, **more: Any) -> None:
    """Add an argument for the name of a trainer. An unknown one is refused with those that are here."""
    added = parser.add_argument(name, type=trainers.known, **more)
    added.completer = _names  # pyright: ignore[reportAttributeAccessIssue]


def _names(**_: object) -> list[str]:
    """Return what the shell may complete."""
    return [*trainers.installed()]


def other_help(command: str) -> str:
    """Return how to see the options of each trainer."""
    return "".join(f"\n  {invocation()} {command} {name} --help" for name in trainers.installed())


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Add one option for each field of TrainerConfig."""
    group = parser.add_argument_group("options that every trainer obeys (they override `trainer` in the file)")
    add_budgets(group)
    for option in _of_struct(TrainerConfig, "trainer"):
        _add(group, option)


def add_budgets(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add the options for the budgets of a turn and of the context, as the cookbook's scripts name them."""
    kinds = {field.name: field.type for field in structs.fields(RolloutConfig)}
    for option, name in BUDGETS.items():
        _add(parser, Option(option, f"rollout.{name}", kinds[name]))


def add_model(parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Add `--model`. `config_of` reads the value."""
    _add(parser, next(option for option in _of_struct(TrainerConfig, "trainer") if option.name == "model"))


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
