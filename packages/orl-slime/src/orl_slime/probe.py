"""What slime's own environment says of itself and of a command line: `python -m orl_slime.probe ANSWER -- arguments`.

It runs in the Python that has slime and is the one module of orl that calls slime's parser, which alone knows the
options of slime, Megatron and SGLang together. slime ignores options that it does not know, so they are found here:
every option that any parser registers while the command line is read is taken down.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import platform
import subprocess
import sys
from collections.abc import Generator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import msgspec
from msgspec import Struct, field
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.cluster.argv import names_in, nearest, value_of

PACKAGES = ("slime", "torch", "ray", "sglang", "transformers", "megatron-core", "orl-core", "orl-rollout", "orl-slime")
MEGATRON_PARSER = "slime.backends.megatron_utils.arguments"  # loaded: then every parser has been asked
ASK_SECONDS = 300.0  # it imports torch, SGLang and Megatron, which takes a minute on a slow disk


class Findings(Struct, frozen=True, kw_only=True):
    """The answer. `unknown` maps options that no parser knows to the nearest that exists, or "".

    `complete` is False where the parsers could not be asked, and `why` says why; `unknown` is empty then. Otherwise
    `why` is what the parser refuses, or "".
    """

    versions: dict[str, str] = field(default_factory=dict[str, str])
    root: str = ""
    megatron: str = ""
    gpus: int = 0
    reads_hf: bool = True
    unknown: dict[str, str] = field(default_factory=dict[str, str])
    complete: bool = False
    why: str = ""


def ask(python: str, argv: Sequence[str], environment: dict[str, str] | None = None) -> Findings:
    """Ask the environment of `python` about itself and about `argv`.

    Raises:
        ConfigError: orl-slime is not installed there, or the question was not answered.
    """
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        try:
            asked = subprocess.run(
                [python, "-m", "orl_slime.probe", str(answer), "--", *argv],
                capture_output=True,
                text=True,
                timeout=ASK_SECONDS,
                env=environment,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise ConfigError(f"{python}: cannot be asked for slime: {exc}") from exc
        if answer.is_file():
            return msgspec.json.decode(answer.read_bytes(), type=Findings)
    last = (asked.stderr.strip().splitlines() or ["no message"])[-1]
    if "No module named" in last:
        raise ConfigError(f"{python}: {last}: `just install-into {python}` brings orl-slime there")
    raise ConfigError(f"{python}: cannot be asked for slime: {last}")


def findings(argv: Sequence[str]) -> Findings:
    """What this environment says of itself, and of `argv` where there is one."""
    root = _root()
    known: set[str] = set()
    why = ""
    try:
        with boundary(OrlError, "slime's parser"), _recorded(known):
            if argv:
                _parse(argv)
    except OrlError as exc:
        why = str(exc)
    except SystemExit as exc:
        why = f"slime's parser: {exc}"
    complete = MEGATRON_PARSER in sys.modules
    names = names_in(argv) if complete else []
    return Findings(
        versions=_versions(),
        root=str(root or ""),
        megatron=_folder_of("megatron.training"),
        gpus=_gpus(),
        reads_hf=_reads_hf(argv),
        unknown={name: nearest(name, known) for name in names if name not in known},
        complete=complete,
        why=why,
    )


def _parse(argv: Sequence[str]) -> None:
    """Let slime read the command line as its train.py would."""
    sys.argv = ["train.py", *argv]
    importlib.import_module("slime.utils.arguments").parse_args()


@contextlib.contextmanager
def _recorded(known: set[str]) -> Generator[None]:
    """Take down the option strings that any argparse parser registers; what it refuses is a SystemExit with a text."""
    add = argparse._ActionsContainer.add_argument  # pyright: ignore[reportPrivateUsage]
    error = argparse.ArgumentParser.error

    def recording(self: Any, *names: Any, **options: Any) -> argparse.Action:
        known.update(name for name in names if isinstance(name, str) and name.startswith("--"))
        if options.get("action") is argparse.BooleanOptionalAction:
            known.update(f"--no-{name[2:]}" for name in names if name.startswith("--"))
        return add(self, *names, **options)

    def refusing(self: argparse.ArgumentParser, message: str) -> NoReturn:
        raise SystemExit(message)

    argparse._ActionsContainer.add_argument = recording  # pyright: ignore[reportPrivateUsage,reportAttributeAccessIssue]
    argparse.ArgumentParser.error = refusing
    try:
        yield
    finally:
        argparse._ActionsContainer.add_argument = add  # pyright: ignore[reportPrivateUsage]
        argparse.ArgumentParser.error = error


def _root() -> Path | None:
    """The checkout that slime was installed from: the folder of train.py."""
    spec = find_spec("slime")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place).parent / "train.py").is_file():
            return Path(place).parent
    return None


def _folder_of(package: str) -> str:
    """The folder that has to be on PYTHONPATH for `package`."""
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        return ""
    places = list(spec.submodule_search_locations or ()) if spec else []
    return str(Path(places[0]).parents[package.count(".")]) if places else ""


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _gpus() -> int:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        return 0
    return int(torch.cuda.device_count())


def _reads_hf(argv: Sequence[str]) -> bool:
    """Whether `--load`, where it is a Hugging Face checkpoint, is one that slime reads without conversion."""
    load = Path(value_of(argv, "--load") or "")
    if not (load / "config.json").is_file():
        return (load / "latest_checkpointed_iteration.txt").is_file()
    try:
        loader: Any = importlib.import_module("slime.backends.megatron_utils.hf_to_megatron")
    except ImportError:
        return True
    return bool(loader.supports_hf_weight_loading(str(load)))


def main(argv: Sequence[str]) -> None:
    """Write the answer to the file named first."""
    Path(argv[0]).write_bytes(msgspec.json.encode(findings(argv[2:])))


if __name__ == "__main__":
    main(sys.argv[1:])
