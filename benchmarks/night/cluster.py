"""A trainer on a cluster that hangs after its first step: `orl train slime` with the stand-in for slime of the tests.

The stand-in has a Python of its own, writes the metrics of one step and a checkpoint, and then says nothing for ever.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from benchmarks.night.plan import patience
from benchmarks.night.processes import START_SECONDS, program, until
from benchmarks.night.scenario import Night, last_line
from benchmarks.night.training import MORE, ORL
from benchmarks.night.verdict import Verdict
from tests.two_pythons.environment import make_environment

SECOND = 1.0  # for a call, a turn, a rollout, and the patience: a stall must be longer than all of them
LEAST_STALL = 300.0 + 2 * SECOND + 1.0
END_SECONDS = 90.0
KEY = "night-key-0123456789"


def silent_trainer(night: Night) -> Verdict:
    """Train with a trainer that hangs: the stall watchdog must end the run."""
    home = night.folder / "silent"
    home.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a platform and a Ray that take connections
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        words = _furnished(night, home, make_environment(home / "env", "slime"))
        more = {**MORE, "RAY_ADDRESS": address, "OPENREWARD_API_URL": f"http://{address}", "STAND_IN_GPUS": "1"}
        more |= {"STAND_IN_ENDS": "waits", "OPENREWARD_API_KEY": KEY}
        with program(words, home / "log", folder=home, more=more) as running:
            seen = home / "runs/run/seen.json"
            until(lambda: seen.is_file() or running.code() is not None, START_SECONDS, "the trainer begins")
            code = running.wait(LEAST_STALL + END_SECONDS)
            said = last_line(running)
    verdict = Verdict(scenario="trainer silent", went_on=int(not code))
    path = home / "runs/run/summary.json"
    summary: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    started = seen.is_file()
    verdict.unclear = int(not started or (bool(code) and not summary.get("error")))
    verdict.notes.append(f"exit code {code}{'' if started else ', it never began'}: {said}")
    return verdict


def _furnished(night: Night, home: Path, python: Path) -> list[str]:
    """Write configuration and tasks; return the command."""
    seconds = dict.fromkeys(("call_timeout", "turn_timeout", "rollout_timeout"), SECOND)
    config = {
        "environments": {"Org/Env": {}},
        "rollout": {**seconds, **patience(SECOND)},
        "trainer": {"backend": "slime", "cluster": {"stall_timeout": LEAST_STALL}},
    }
    (home / "slime.yaml").write_text(json.dumps(config), encoding="utf-8")
    (home / "given.jsonl").write_text('{"prompt": "?", "label": ""}\n', encoding="utf-8")
    return [
        *(*ORL, "train", "slime", "--config", "slime.yaml", "--task-data", "given.jsonl", "--name", "run"),
        *("--model", str(night.checkpoint), "--python", str(python), "--num-gpus", "1"),
        *("--model-args", "qwen3-0.6B"),
    ]
