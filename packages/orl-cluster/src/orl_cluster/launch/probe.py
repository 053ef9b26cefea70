"""What a trainer's own environment says of itself and of a command line.

`ask` runs the adapter's probe, `python -m ADAPTER.probe ANSWER -- arguments`, in the Python that has the trainer; there
`findings` calls the trainer's parser, which alone knows the options of trainer, backend and engine together. Every
option that any parser registers while the command line is read is taken down, so that a wrong one is told from a right
one also where the trainer would ignore it. No trainer is named here: an adapter hands in its name.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import platform
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import msgspec
from msgspec import Struct, field
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.bounded_files import read_whole
from orl_rollout.signals import children

from orl_cluster.launch.argv import names_in, nearest, value_of
from orl_cluster.launch.trainer_defaults import TRACKER

PACKAGES = ("torch", "ray", "sglang", "transformers", "megatron-core", "orl-core", "orl-rollout", "orl-cluster")
ASK_SECONDS = 300.0  # it imports torch, the engine and the backend, which takes a minute on a slow disk


class Findings(Struct, frozen=True, kw_only=True):
    """The answer. `unknown` maps options that no parser knows to the nearest that exists, or "".

    `complete` is False where the parsers could not be asked, and `why` says why; `unknown` is empty then. Otherwise
    `why` is what the parser refuses, or "". `features` are what the adapter looks for in this environment, by names of
    its own; `obstacles` are what else keeps the command line from running there, `notes` what its user should know.
    """

    versions: dict[str, str] = field(default_factory=dict[str, str])
    root: str = ""
    gpus: int = 0
    features: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: dict[str, str] = field(default_factory=dict[str, str])
    complete: bool = False
    why: str = ""


def ask(trainer: str, python: str, argv: Sequence[str], environment: Mapping[str, str]) -> Findings:
    """Ask the environment of `python` about itself and about `argv`, which parsers judge by `environment` too.

    Raises:
        ConfigError: the adapter of `trainer` is not installed there, or the question was not answered.
    """
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        try:
            command = [python, "-m", f"orl_{trainer}.probe", str(answer), "--", *argv]
            asked = children.run(command, environment=environment, timeout=ASK_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise ConfigError(f"{python}: cannot be asked for {trainer}: {exc}") from exc
        if answer.is_file():
            return msgspec.json.decode(read_whole(answer), type=Findings)
    last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
    if "No module named" in last:
        install = f"just install-into {python} --trainer {trainer}"
        raise ConfigError(f"{python}: {last}: `{install}` brings orl-{trainer} there")
    raise ConfigError(f"{python}: cannot be asked for {trainer}: {last}")


def findings(trainer: str, argv: Sequence[str], *, last_parser: str) -> Findings:
    """What this environment says of itself, and of `argv` where there is one.

    `last_parser` is the module that the trainer's parser loads last: where it is loaded, every parser has been asked.
    """
    known: dict[str, bool] = {}
    why, refused = "", False
    try:
        with boundary(OrlError, f"the parser of {trainer}"), _recorded(known):
            if argv:
                sys.argv = ["train.py", *argv]
                importlib.import_module(f"{trainer}.utils.arguments").parse_args()
    except OrlError as exc:
        why = str(exc)
    except SystemExit as exc:
        why, refused = f"the parser of {trainer}: {exc}", True
    asked = last_parser in sys.modules
    names = names_in(argv) if asked else []
    switched = next(_given_values(argv, known), "") if asked else ""
    return Findings(
        versions=_versions(trainer),
        root=str(_root_of(trainer) or ""),
        gpus=_gpus(),
        unknown={name: nearest(name, known) for name in names if name not in known},
        complete=asked or refused,
        why=why or switched,
    )


def _given_values(argv: Sequence[str], known: Mapping[str, bool]) -> Generator[str]:
    """What is wrong with switches that stand before a value, `--use-kl-loss false`: a trainer would set them."""
    for name, value in pairwise(argv):
        if known.get(name) and not value.startswith("--"):
            yield f"{name} is a switch and takes no value, such as {value!r}: give it alone, or leave it out"


@contextlib.contextmanager
def _recorded(known: dict[str, bool]) -> Generator[None]:
    """Take down the option strings that any argparse parser registers, and which of them take no value.

    What a parser refuses is a SystemExit with a text.
    """
    add = argparse._ActionsContainer.add_argument  # pyright: ignore[reportPrivateUsage]
    error = argparse.ArgumentParser.error

    def recording(self: Any, *names: Any, **options: Any) -> argparse.Action:
        action = add(self, *names, **options)
        for name in (name for name in action.option_strings if name.startswith("--")):
            known[name] = known.get(name, True) and action.nargs == 0
        return action

    def refusing(self: argparse.ArgumentParser, message: str) -> NoReturn:
        raise SystemExit(message)

    argparse._ActionsContainer.add_argument = recording  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue]
    argparse.ArgumentParser.error = refusing
    try:
        yield
    finally:
        argparse._ActionsContainer.add_argument = add  # pyright: ignore[reportPrivateUsage]
        argparse.ArgumentParser.error = error


def _root_of(trainer: str) -> Path | None:
    """The checkout that the trainer was installed from: the folder of train.py."""
    spec = find_spec(trainer)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place).parent / "train.py").is_file():
            return Path(place).parent
    return None


def finds(module: str) -> bool:
    """Whether `module` is there, without its being imported (its parents are)."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def goes_on(argv: Sequence[str]) -> bool:
    """Whether `--load` is `--save`: the run's own checkpoint, which need not be there yet."""
    load, save = (value_of(argv, name) for name in ("--load", "--save"))
    return bool(load and save) and Path(load or "").absolute() == Path(save or "").absolute()


def no_checkpoint(folder: str) -> str:
    """Why training cannot go on from `folder`, and where it could; "" where training, or a conversion, wrote it."""
    tracker = Path(folder) / TRACKER
    if not tracker.is_file():
        return f"no checkpoint is there, training would start anew: {_meant(folder)}"
    step = tracker.read_text(encoding="utf-8").strip()
    place = f"iter_{int(step):07d}" if step.isdecimal() else step
    if place and (Path(folder) / place).is_dir():
        return ""
    return f"its {TRACKER} names {step or 'nothing'}, and no such checkpoint is there"


def _meant(folder: str) -> str:
    """The folder with a checkpoint that `folder`, a run's or one step's, was likely taken for."""
    near = (place for place in (Path(folder) / "checkpoint", Path(folder).parent) if (place / TRACKER).is_file())
    found = next(near, None)
    return f"did you mean {found}?" if found else f"name the folder that --save named, which holds {TRACKER}"


def _versions(trainer: str) -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in (trainer, f"orl-{trainer}", *PACKAGES):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _gpus() -> int:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return 0
    return int(torch.cuda.device_count())


def answer(look: Callable[[Sequence[str]], Findings], argv: Sequence[str]) -> None:
    """An adapter's `python -m ADAPTER.probe`: write what it finds to the file named first."""
    Path(argv[0]).write_bytes(msgspec.json.encode(look(argv[2:])))
