"""Ask a trainer's own Python about itself and a command line: unknown options, GPUs, router, checkpoints.

`ask` runs the adapter's probe, `python -m ADAPTER.probe ANSWER -- arguments`, in the Python that has the trainer. There
`findings` calls the trainer's parser, which alone knows the options of trainer, backend and engine together. It records
every option that any parser registers meanwhile, so that an unknown option is found also where the trainer would ignore
it. No trainer is named here: an adapter hands in its name.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from importlib.metadata import distributions
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import msgspec
from msgspec import Struct, field
from orl_core import ConfigError, OrlError, boundary, decode_config
from orl_core.text import did_you_mean
from orl_rollout.edge import children
from orl_rollout.functions import find_modules_in
from orl_rollout.gpus import Gpu, gpu_memory
from orl_rollout.results.outcome import load_reward
from orl_rollout.run_folder.checkpoint import CHECKPOINT_TRACKER, checkpoint_in, conversion_of
from orl_rollout.runtime.runtime import load_player

from orl_cluster.launch.options import CUSTOM_CONFIG, REPLAY, ROUTER, names_in, value_of

FORWARDS = "routing is forwarded"  # a feature: the router hands the request for it to the engine
DROPS = (
    "the installed sglang-router drops `return_routed_experts`, so that engines return no routing. Install the router "
    "that the trainer's Dockerfile names"
)
WORKING_FOLDER = "orl_working_folder"  # in the file of that option: where the user's own modules are
ASK_SECONDS = 300.0  # it imports torch, the engine and the backend, which takes a minute on a slow disk


class Lacking(ConfigError):
    """No Python is named, or it lacks orl or the trainer: the command line can only be shown."""


class Findings(Struct, frozen=True, kw_only=True):
    """The answer. `root` is the trainer's checkout, `ray` the version of Ray; "" if there is none.

    `features` are the adapter's own names for what it looks for; `obstacle` is what else keeps the command line from
    running; `reward` says why the user's reward function cannot be loaded. Both are "" if there is nothing to say.
    `unknown` maps options that no parser knows to a hint at the nearest, or "". `complete` is False if the parsers
    could not be asked: then `why` is the reason. Otherwise `why` is what the parser refuses, or "".
    """

    root: str = ""
    ray: str = ""
    gpus: int = 0
    gpu_memory: tuple[Gpu, ...] = ()
    features: tuple[str, ...] = ()
    obstacle: str = ""
    reward: str = ""
    unknown: dict[str, str] = field(default_factory=dict[str, str])
    complete: bool = False
    why: str = ""


def ask(trainer: str, python: str, argv: Sequence[str], environment: Mapping[str, str]) -> Findings:
    """Ask the environment of `python` about itself and about `argv`, which its parsers read with `environment`."""
    try:
        written = answer_of(python, f"orl_{trainer}.probe", ["--", *argv], environment)
    except ConfigError as exc:
        if f"No module named 'orl_{trainer}'" in str(exc):
            install = f"orl install-into {python} --trainer {trainer}"
            raise Lacking(f"{python} has no orl-{trainer}: run `{install}`") from exc
        raise ConfigError(f"{python}: cannot be asked for {trainer}: {exc}") from exc
    return msgspec.json.decode(written, type=Findings)


def answer_of(python: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """Run `python -m MODULE ANSWER arguments` and return the content of the file ANSWER that it writes."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "answer.json"
        try:
            command = [python, "-m", module, str(file), *arguments]
            done = children.run(command, environment=environment, timeout=ASK_SECONDS)
        except subprocess.TimeoutExpired as exc:
            raise ConfigError(f"no answer within {ASK_SECONDS:g} s") from exc
        except OSError as exc:
            raise ConfigError(str(exc)) from exc
        if file.is_file():
            return file.read_bytes()
    raise ConfigError((done.stderr.strip().splitlines() or ["no message"])[-1])


def findings(trainer: str, argv: Sequence[str], *, last_parser: str) -> Findings:
    """Look at this environment, and at `argv` if there is one.

    `last_parser` is the module that the trainer's parser loads last: once it is loaded, every parser has been asked.
    """
    known: dict[str, bool] = {}
    why, refused = "", False
    try:
        with boundary(OrlError, f"the parser of {trainer}"), recorded(known):
            if argv:
                sys.argv = ["train.py", *argv]
                importlib.import_module(f"{trainer}.utils.arguments").parse_args()
    except OrlError as exc:
        why = str(exc)
    except SystemExit as exc:
        why, refused = f"the parser of {trainer}: {exc}", True
    parsed = last_parser in sys.modules
    names = names_in(argv) if parsed else []
    switched = next(_given_values(argv, known), "") if parsed else ""
    gpus = gpu_memory()
    return Findings(
        root=_root_of(trainer),
        ray=next((package.version for package in distributions(name="ray")), ""),
        gpus=len(gpus),
        gpu_memory=gpus,
        reward=_function_fault(argv),
        unknown={name: did_you_mean(name, known) for name in names if name not in known},
        complete=parsed or refused,
        why=why or switched,
    )


def _function_fault(argv: Sequence[str]) -> str:
    """Return why reward function or agent of the file `--custom-config-path` cannot be loaded here, or ""."""
    path = Path(value_of(argv, CUSTOM_CONFIG) or "")
    tree: dict[str, Any] = msgspec.json.decode(path.read_bytes()) if path.is_file() else {}
    if WORKING_FOLDER not in tree:
        return ""
    find_modules_in(tree[WORKING_FOLDER])
    return function_fault(tree["orl_config"])


def function_fault(public: object) -> str:
    """Return why reward function or agent of a configuration without its secrets cannot be loaded here, or ""."""
    try:
        config = decode_config(public, "orl_config")
        load_reward(config)
        load_player(config)
    except ConfigError as fault:
        return str(fault)
    return ""


def _given_values(argv: Sequence[str], known: Mapping[str, bool]) -> Generator[str]:
    """Yield what is wrong with switches before a value, `--use-kl-loss false`: a trainer would set them."""
    for name, value in pairwise(argv):
        if known.get(name) and not value.startswith("--"):
            yield f"{name} is a switch and takes no value, such as {value!r}: give it alone, or leave it out"


@contextlib.contextmanager
def recorded(known: dict[str, bool]) -> Generator[None]:
    """Record the options that any argparse parser registers, and whether they take no value.

    A refusal of a parser is a SystemExit with a text.
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


def _root_of(trainer: str) -> str:
    """Return the checkout that the trainer was installed from, the folder of train.py; "" if there is none."""
    spec = find_spec(trainer)
    folders = (Path(folder).parent for folder in spec.submodule_search_locations or ()) if spec else ()
    return next((str(folder) for folder in folders if (folder / "train.py").is_file()), "")


def finds(module: str) -> bool:
    """Tell whether `module` is there. Its parents are imported, it is not."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def router_forwards(field: str = "return_routed_experts") -> bool:
    """Tell whether the installed sglang-router hands `field` to the engine. It drops what it was not built with.

    Release 0.3.2 was not; the builds in the trainers' images were. Without a library to look at, nothing is dropped.
    """
    spec = find_spec("sglang_router")
    folders = spec.submodule_search_locations if spec else None
    libraries = [library for folder in folders or () for library in Path(folder).glob("*.so")]
    return not libraries or any(field.encode() in library.read_bytes() for library in libraries)


def not_forwarded(argv: Sequence[str]) -> str:
    """Return why the run of `argv` would get no routing to replay, or "". A router of the user's is not asked."""
    names = names_in(argv)
    if REPLAY not in names or ROUTER in names or router_forwards():
        return ""
    return f"{REPLAY}: {DROPS}, or remove this option"


def goes_on(argv: Sequence[str]) -> bool:
    """Tell whether `--load` is `--save`: the run's own checkpoint, which need not be there yet."""
    load, save = (value_of(argv, name) for name in ("--load", "--save"))
    return bool(load and save) and Path(load or "").absolute() == Path(save or "").absolute()


def no_checkpoint(option: str, folder: str) -> str:
    """Return why training cannot continue from `folder`, the value of `option`, and from which it can; "" if it can."""
    tracker = Path(folder) / CHECKPOINT_TRACKER
    if not tracker.is_file():
        meant = f"name the folder that --save named, which holds {CHECKPOINT_TRACKER}"
        return f"{option} {folder}: no checkpoint is there, training would start anew: {meant}"
    step = tracker.read_text(encoding="utf-8").strip()
    saved = f"iter_{int(step):07d}" if step.isdecimal() else step
    if saved and (Path(folder) / saved).is_dir():
        return ""
    return f"{option} {folder}: its {CHECKPOINT_TRACKER} names {step or 'nothing'}, and no such checkpoint is there"


def of_fsdp(option: str, folder: str, trainer: str, instead: str = "") -> str:
    """Return why Megatron cannot read the checkpoint in `folder`, the value of `option`; "" if FSDP did not write it.

    `trainer` converts it; `instead` is another way out.
    """
    checkpoint = checkpoint_in(Path(folder))
    if checkpoint is None or checkpoint.format != "fsdp":
        return ""
    convert = conversion_of(folder, trainer)
    return f"{option} {folder}: FSDP wrote this checkpoint: {instead}run {convert} and name the result with --model"


def answer(look: Callable[[Sequence[str]], Findings], argv: Sequence[str]) -> None:
    """Run an adapter's `python -m ADAPTER.probe`: write its findings to the file named first."""
    Path(argv[0]).write_bytes(msgspec.json.encode(look(argv[2:])))
