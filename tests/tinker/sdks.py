"""Plays tests/tinker with SDKs of several versions, each in an environment of its own: python -m tests.tinker.sdks.

The newest is that of the package index today, whatever bound orl has. An SDK that is too old must be refused, at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOO_OLD, SDKS = "0.24.1", ("0.25.0", "0.27.2", "newest")
ORL = [
    *("packages/orl-core", "packages/orl-rollout", "packages/orl-gateway", "packages/orl-tinker"),
    *("packages/orl-local[tensorboard,wandb]", "packages/orl-testing[tinker]", "apps/launcher", "apps/playground"),
]
TOOLS = ("pytest", "pytest-asyncio", "pytest-xdist", "hypothesis")
SHOWN = ("tinker", "transformers", "torch", "peft", "trl", "protobuf", "pydantic")
VERSIONS = f"from importlib.metadata import version\nprint(*(f'{{one}} {{version(one)}}' for one in {SHOWN}), sep=', ')"


def run(command: Sequence[str | Path], seconds: float) -> tuple[int, str]:
    """The exit code and output of `command`, which ends with all its children after `seconds`."""
    variables = {**os.environ, "HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE", "quick")}
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=variables,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            output += f"\nended after {seconds:g} s"
    return process.returncode, output


def environment(folder: Path, sdk: str) -> Path:
    """The Python of a new environment with this SDK."""
    python = folder / "bin" / "python"
    subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
    wanted = folder / "wanted.txt"
    wanted.write_text("tinker\n" if sdk == "newest" else f"tinker=={sdk}\n")
    words = [word for one in ORL for word in ("--editable", one)]
    command = ["uv", "pip", "install", "--quiet", "--python", str(python), "--overrides", str(wanted), *words, *TOOLS]
    subprocess.run(command, check=True, cwd=ROOT, timeout=600)
    return python


def refused(folder: Path, seconds: float) -> bool:
    """Return if one line refuses the SDK that is too old."""
    python = environment(folder, TOO_OLD)
    command = [python.with_name("orl"), "train", "tinker", "--config", "configs/local.yaml", "--dry-run"]
    code, output = run(command, seconds)
    print(f"tinker {TOO_OLD}: {output.strip()} (exit code {code})", flush=True)
    return code == 1 and output.count("\n") == 1 and TOO_OLD in output


def passes(folder: Path, sdk: str, arguments: Sequence[str], seconds: float) -> bool:
    """Return if the tests pass with this SDK."""
    python, began = environment(folder, sdk), time.monotonic()
    print(run([python, "-c", VERSIONS], 120)[1].strip(), flush=True)
    command = [python, "-m", "pytest", "-q", "-n", "2", "-m", "not slow", "tests/tinker", *arguments]
    code, output = run(command, seconds)
    lines = output.strip().splitlines()
    print(*(lines if code else lines[-1:]), f"exit code {code}, {time.monotonic() - began:.0f} s", sep="\n", flush=True)
    return code == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sdks", nargs="+", default=SDKS, help="versions, or newest")
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv-tinker", help="where the environments are")
    parser.add_argument("--seconds", type=float, default=1200.0, help="for the tests with one SDK")
    options, arguments = parser.parse_known_args()
    good = [refused(options.folder / TOO_OLD, 60.0)]
    good += [passes(options.folder / sdk, sdk, arguments, options.seconds) for sdk in options.sdks]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
