"""Play environments of other people: doctor, prepare, rollouts, two training steps: `just nightly environments`.

`environments.yaml` names them. Each is checked out, installed into a virtual environment of its own, and served on
loopback. A stand-in for SGLang says the calls that the file lists; a tiny model that has read these episodes is trained
with `orl train local`. Then the journals are compared with the server's own log. Nothing of the environments is kept in
this repository.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.datum import to_data
from orl_launcher.main import main as orl
from orl_rollout.episodes.journal import read_journal
from transformers import PreTrainedTokenizerFast

from tests.kit.serving import engine
from tests.servers.compare import Episodes, episodes_of_journal, episodes_of_server
from tests.servers.model import write_model, write_tokenizer
from tests.servers.process import installed, serving

FILE = Path(__file__).with_name("environments.yaml")
# What models say in addition to good calls, and how often each is said for one good call.
MISTAKES = ('{"name": "no_such_tool", "arguments": {}}', '{"name": ')
TASKS, SAMPLES = 4, 2  # of the rollouts
GROUPS, GROUP, STEPS = 2, 3, 2  # of the training


class Foreign(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One environment: its place, how it is installed, and calls that it understands."""

    commit: str
    served: str  # module:class
    calls: list[dict[str, dict[str, Any]]]
    install: tuple[str, ...] = ("-r", "requirements.txt")
    folder: str = ""
    secrets: dict[str, str] = {}
    variables: dict[str, str] = {}
    max_turns: int = 4
    splits: tuple[str, ...] = ("train",)


class Played(Struct, frozen=True):
    """The findings: exit codes by command, the two sides of rollouts and training, and seconds of training."""

    name: str
    codes: dict[str, int]
    rollouts: tuple[Episodes, Episodes]
    training: tuple[Episodes, Episodes]
    seconds: float

    def row(self) -> str:
        """Return the row of a table: commands, then episodes, calls and rewards of journal and server."""
        cells = [self.name, ", ".join(f"{name} {code}" for name, code in self.codes.items())]
        for ours, theirs in (self.rollouts, self.training):
            cells += [
                str(len(ours.calls)),
                f"{ours.count} / {theirs.count}",
                f"{ours.reward:.6f} / {theirs.reward:.6f}",
                f"{ours.failed} / {theirs.failed}",
                f"{theirs.opened} / {theirs.closed}",
                str(ours.differences(theirs)),
            ]
        return f"| {' | '.join([*cells, f'{self.seconds:.0f}'])} |"


def checked_out(name: str, foreign: Foreign, folder: Path) -> Path:
    """Return a checkout of the repository `name` in `folder`, cloned from GitHub if it is not there."""
    checkout = folder / name.partition("/")[2]
    if not checkout.exists():
        subprocess.run(["git", "clone", "--quiet", f"https://github.com/{name}", str(checkout)], check=True)
    subprocess.run(["git", "-C", str(checkout), "checkout", "--quiet", foreign.commit], check=True)
    return checkout


def configuration(name: str, foreign: Foreign, url: str) -> dict[str, Any]:
    """Return the configuration of a short run on one environment."""
    environment = {
        "base_url": url,
        "splits": foreign.splits,
        "max_turns": foreign.max_turns,
        "secrets": foreign.secrets,
    }
    return {
        "environments": {f"{name.partition('/')[0]}/{foreign.served.partition(':')[2]}": environment},
        "openreward_run_name": "played",
        "rollout": {"turn_tokens": 192, "context_tokens": 12288, "tool_result_tokens": 512, "max_nudges": 1},
        "trainer": {
            "backend": "local",
            "rollout_batch_size": GROUPS,
            "n_samples": GROUP,
            "num_rollout": STEPS,
        },
    }


def saying(tokenizer: PreTrainedTokenizerFast, foreign: Foreign) -> Callable[..., Sequence[int]]:
    """Return a policy that makes one of the listed calls, or now and then a mistake."""
    good = [
        msgspec.json.encode({"name": tool, "arguments": given}).decode()
        for call in foreign.calls
        for tool, given in call.items()
    ]
    texts = [f"<tool_call>\n{call}\n</tool_call><|im_end|>" for call in [*good * 4, *MISTAKES]]
    answers = [tokenizer.encode(text, add_special_tokens=False) for text in (*texts, "I do not know.<|im_end|>")]
    chance = random.Random(0)
    return lambda _ids, _sampling: chance.choice(answers)


def play(name: str, foreign: Foreign, checkouts: Path, output: Path) -> Played:
    """Play one environment in the new folder `output`."""
    source = checked_out(name, foreign, checkouts)
    python = installed(checkouts / "venv" / source.name, foreign.install, inside=source)
    output.mkdir(parents=True)
    log, config, tasks, model = (output / part for part in ("server.jsonl", "config.yaml", "tasks.jsonl", "model"))
    tokenizer = write_tokenizer(model, source)
    write_model(model, tokenizer)
    serve = Path(__file__).with_name("serve.py")
    command = [str(python), str(serve), str(source / foreign.folder), foreign.served, str(log)]
    with serving(command, output / "server.txt", **foreign.variables) as url:
        config.write_bytes(msgspec.yaml.encode(configuration(name, foreign, url)))
        common = ["--config", str(config), "--model", str(model)]
        os.chdir(output)
        with engine(saying(tokenizer, foreign)) as sampler:
            codes = {
                "doctor": orl(["doctor", *common, "--engine", sampler]),
                "prepare": orl(["prepare", *common[:2], "--output", str(tasks), "--max-tasks", str(TASKS)]),
            }
            began = log.stat().st_size
            more = ["--engine", sampler, "--samples", str(SAMPLES), "--name", "rollouts"]
            codes["rollout"] = orl(["rollout", *common, "--task-data", str(tasks), *more])
        rollouts = episodes_of_journal(output / "runs" / "rollouts"), episodes_of_server(log, began)
        entries = read_journal(output / "runs" / "rollouts")
        write_model(
            model, tokenizer, [one for entry in entries for one in to_data(entry.trajectory, reward=entry.reward)]
        )
        began, started = log.stat().st_size, time.monotonic()
        codes["train"] = orl(["train", "local", *common, "--task-data", str(tasks), "--name", "trained"])
        seconds = time.monotonic() - started
        training = episodes_of_journal(output / "runs" / "trained"), episodes_of_server(log, began)
    return Played(name, codes, rollouts, training, seconds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the environments that are named, or all. Return 1 if a command failed or a journal differs."""
    parser = argparse.ArgumentParser(prog="just nightly environments", description=__doc__)
    parser.add_argument("names", nargs="*", help="environments of the file, such as EnvCommons/ATC (default: all)")
    parser.add_argument("--checkouts", type=Path, required=True, help="folder of checkouts and virtual environments")
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs; those of the same name go")
    told = parser.parse_args(arguments)
    listed = msgspec.yaml.decode(FILE.read_bytes(), type=dict[str, Foreign])
    wrong = 0
    for name in told.names or listed:
        output = told.output.resolve() / name.replace("/", "-")
        shutil.rmtree(output, ignore_errors=True)
        played = play(name, listed[name], told.checkouts.resolve(), output)
        (output / "row.md").write_text(f"{played.row()}\n", "utf-8")
        print(played.row(), flush=True)
        differ = any(ours.differences(theirs) for ours, theirs in (played.rollouts, played.training))
        wrong += differ or any(played.codes.values())
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
