"""What else a user could play and train with: verifiers, tinker-cookbook, TRL and its own OpenReward integration.

Each has pinned versions in an environment of its own below `.venv-peers`, made at the first run, and a program of
`peer_programs` in a process of its own. All have the same tokenizer, texts and actions. A turn is 155 sampled ids and
350 ids of a result; the tool costs nothing, so that CPU is the framework's. orl and verifiers ask an engine over HTTP,
the others' engine is a function in their process. In a GRPOTrainer at least two episodes play.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import compress, pairwise, product
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import msgspec
from orl_core.config import decode_config
from orl_core.datum import to_data
from orl_launcher.playground import cached_model
from orl_playground.guess_number import tools
from orl_playground.server import serving
from orl_rollout.edge.files import cache_folder
from orl_rollout.results.outcome import Outcome
from rich.console import Console
from rich.table import Table

from benchmarks.engine_time import ours
from benchmarks.servers import ROOT, ServerProcess, many_files, served, until
from benchmarks.world import TURN, World, make_world, playing
from tests.kit.tokenizers import template

FOLDER = ROOT / ".venv-peers"
PINS = {
    "verifiers": ("verifiers==0.1.14", "transformers==5.24.0", "openreward==0.1.167"),
    "cookbook": ("tinker-cookbook==0.5.8", "transformers==5.5.4", "torch==2.15.0", "openreward==0.1.167"),
    "trl": ("trl==1.16.0", "transformers==5.24.0", "torch==2.15.0", "openreward==0.1.167"),
}
Answer = dict[str, Any]
TURNS, AT_ONCE, ROUNDS = (5, 10, 20, 40), (1, 64), 3
RESTART_TURNS, CALL_SECONDS = 6, 0.5
ASK_SECONDS, STEP_SECONDS, LONG_SECONDS = 1200.0, 7200.0, 20.0  # what takes longer is measured once
STEPS = 3, 6  # after which the tasks that are held out are played
HELD_OUT = "playground/GuessNumber/success"
CALM = {"OMP_WAIT_POLICY": "PASSIVE"}  # threads of torch that wait cost no CPU
# What both trainers share. Everything else is each one's own default.
RATE, TASKS, GROUP, UPDATES = 4e-4, 8, 16, 2
TRL = {
    "per_device_train_batch_size": TASKS * GROUP // UPDATES, "steps_per_generation": UPDATES, "num_generations": GROUP,
    "learning_rate": RATE, "lr_scheduler_type": "constant", "adam_beta2": 0.99,
    "max_completion_length": 128, "max_tool_calling_iterations": 6,
}  # fmt: skip


def interpreter(name: str) -> str:
    """Return the interpreter of a peer's environment, after what is missing there was installed."""
    folder = str(FOLDER / name)
    subprocess.run(["uv", "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder], check=True)
    subprocess.run(["uv", "pip", "install", "--quiet", "--python", folder, *PINS[name]], check=True)
    return f"{folder}/bin/python"


class Peer:
    """A peer's program, which answers questions until it dies or is too late."""

    def __init__(self, name: str, work: Mapping[str, Any], log: Path) -> None:
        words = [interpreter(name), str(ROOT / "benchmarks" / "peer_programs" / f"with_{name}.py")]
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self._log, env = log, {**kept, "HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", **CALM}
        with log.open("w") as errors:
            self.process = subprocess.Popen(words, stdin=PIPE, stdout=PIPE, stderr=errors, text=True, env=env)
        self._send(work)

    def ask(self, ask: str, seconds: float = ASK_SECONDS, **question: Any) -> Answer:
        """Return the answer, or why there is none."""
        timer, line = threading.Timer(seconds, self.process.kill), ""
        timer.start()
        with suppress(OSError):
            self._send({"ask": ask, **question})
            line = self.process.stdout.readline() if self.process.stdout else ""
        timer.cancel()
        last = self._log.read_text("utf-8", errors="replace").strip().rpartition("\n")[2]
        return json.loads(line) if line else {"failed": f"no answer within {seconds:g} s: {last}"}

    def play(self, **question: Any) -> Answer:
        return self.ask("play", **question)

    def _send(self, message: Mapping[str, Any]) -> None:
        if self.process.stdin:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()


class Orl:
    """Plays the same by orl, in this process: with its runtime and client on a server, else in the bare loop."""

    def __init__(self, world: World, engines: Mapping[str, str]) -> None:
        self._world, self._engines = world, engines

    def play(self, action: str, episodes: int, turns: int, rows: bool = False, url: str = "") -> Answer:
        started = time.process_time()
        if url:
            played = asyncio.run(self._with_server(url, turns)).trajectory
        else:
            played = asyncio.run(ours(self._world, self._engines[action], episodes, turns))[0]
        found: Answer = {"ms": 1000 * (time.process_time() - started) / episodes / turns}
        data = to_data(played, reward=0.0)
        found["trained"] = [token for row in data for token in compress(row.response, row.loss_mask)]
        found["rows"] = [len(row.prompt) + len(row.response) for row in data]
        found["ending"] = played.error or f"{played.stop_reason}, {len(found['trained'])} ids train"
        return found

    async def _with_server(self, url: str, turns: int) -> Outcome:
        with tempfile.TemporaryDirectory() as folder:
            async with playing(self._world, self._engines["usual"], [url], Path(folder) / "journal") as player:
                return await player.play(turns)


Players = dict[str, Orl | Peer]


@contextmanager
def players(world: World, actions: Mapping[str, list[int]], names: Iterable[str]) -> Generator[Players]:
    """Start orl and the peers of these names, in front of one engine for each kind of action."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        world.hf.save_pretrained(folder)
        (folder / "chat_template.jinja").write_text(template("qwen3_instruct_2507"), "utf-8")
        engines: dict[str, str] = {}
        for name, ids in actions.items():
            engines[name] = stack.enter_context(served("engine", answer=ids, chat=chat_of(world, ids)))
        work = {"folder": str(folder), "actions": actions, "engines": engines, "said": world.said}
        found: Players = {"orl": Orl(world, engines)}
        for name in names:
            found[PINS[name][0]] = peer = Peer(name, work, folder / f"{name}.log")
            stack.callback(peer.process.communicate)
        yield found


def chat_of(world: World, ids: list[int]) -> Answer:
    """Return the answer `ids` as vLLM gives it to OpenAI's chat completions with `return_token_ids`."""
    said, _, call = world.hf.decode(ids).partition("\n<tool_call>\n")
    made = json.loads(call.partition("\n</tool_call>")[0])
    function = {"name": made["name"], "arguments": json.dumps(made["arguments"])}
    calls = [{"id": "c", "type": "function", "function": function}]
    kept = [{"token": f"token_id:{one}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for one in ids]
    choice: Answer = {"index": 0, "finish_reason": "tool_calls", "token_ids": ids, "logprobs": {"content": kept}}
    choice["message"] = {"role": "assistant", "content": said, "tool_calls": calls}
    usage = {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": 1 + len(ids)}
    head = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "prompt_token_ids": [1]}
    return {**head, "usage": usage, "choices": [choice]}


def costs(found: Players, turns: Sequence[int], at_once: Sequence[int], rounds: int) -> Table:
    """Measure CPU, medians of interleaved rounds."""
    cells = [(episodes, length) for episodes in at_once for length in turns]
    values = {(name, cell): list[float]() for name in found for cell in cells}
    failed: dict[str, str] = {}
    for number, cell, (name, player) in product(range(-1, rounds), cells, found.items()):
        once = number > 0 and sum(values[name, cell]) * cell[0] * cell[1] > 1000 * LONG_SECONDS
        if name in failed or once or (number < 0 and cell != cells[0]):
            continue  # the first round warms up
        told = player.play(action="usual", episodes=cell[0], turns=cell[1])
        if "failed" in told:
            failed[name] = f"{told['failed']} ({cell[0]} x {cell[1]})"
        elif number >= 0:
            values[name, cell].append(told["ms"])
    medians = {key: statistics.median(given) if given else math.nan for key, given in values.items()}
    table = Table(
        "CPU, ms a turn", *(f"{one} x {two}" for one, two in cells), "of orl's", "more per 1,000 ids", "ended"
    )
    for name in found:
        last, first = medians[name, cells[-1]], medians[name, cells[-len(turns)]]
        slope = 2000 * (last - first) / TURN / (turns[-1] - turns[0])
        shown = (f"{medians[name, cell]:.2f}" for cell in cells)
        table.add_row(name, *shown, f"{last / medians['orl', cells[-1]]:.1f}", f"{slope:.2f}", failed.get(name, ""))
    return table


def fates(found: Players, actions: Mapping[str, list[int]], turns: int) -> Table:
    """See which ids train, and what is left of a rollout whose environment server dies and comes back."""
    heads = (f"rows of {turns} turns: their ids", "the same text in other ids")
    table = Table(
        "", "sampled ids train", *heads, "after a restart of the server", "results that the model reads instead"
    )
    for name, player in found.items():
        told = {one: player.play(action=one, episodes=1, turns=turns, rows=True) for one in actions}
        with tempfile.NamedTemporaryFile() as calls:
            server = ServerProcess("environment", text="done", seconds=CALL_SECONDS, calls=calls.name)
            killer = threading.Thread(target=_restart, args=(server, Path(calls.name)))
            with server:
                killer.start()
                fate = player.play(action="usual", episodes=1, turns=RESTART_TURNS, url=server.url)
                killer.join()
        same = all(one.get("trained") == actions[action] * turns for action, one in told.items())
        rows = [" + ".join(map(str, one.get("rows", ()))) or one.get("failed") for one in told.values()]
        lost = [text for text in fate.get("read", ()) if text != "done"]
        read = f"{len(lost)}, such as: {lost[0][:60]}" if lost else "none"
        table.add_row(name, "yes" if same else "no", *rows, fate.get("failed") or fate["ending"], read)
    return table


def _restart(server: ServerProcess, calls: Path) -> None:
    """Kill the server in the second call, and start it again."""
    until(lambda: calls.stat().st_size > 1, ASK_SECONDS, "the second call")
    server.kill()
    server.start()


def steps(trl: Peer) -> Table:
    """Train the playground's model with both, from the same checkpoint, and play the tasks that are held out."""
    tree = {"environments": {"playground/GuessNumber": {}}, "trainer": {"model": "playground/GuessNumber", "seed": 0}}
    model = str(cached_model(decode_config(tree, "peers"), cache_folder()))
    with tempfile.TemporaryDirectory() as name, serving(("guessnumber",)) as [url]:
        folder, output = Path(name), f"{name}/trl"
        place = f"environments.playground/GuessNumber.base_url={url}"
        orl = [
            str(Path(sys.executable).with_name("orl")),
            "--config",
            str(ROOT / "configs" / "local.yaml"),
            "--set",
            place,
        ]
        question = {"model": model, "url": url, "tool": tools()[0], "more": TRL, "output": output}
        other = trl.ask("step", STEP_SECONDS, steps=[count * UPDATES for count in STEPS], **question)
        if "failed" in other:
            raise SystemExit(other["failed"])
        options = ("--num-rollout", str(STEPS[1]), "--lr", str(RATE), "--lr-decay-style", "constant", "--name", "orl")
        often = ("--set", f"eval.interval={STEPS[0]}")
        command = [orl[0], "train", "local", "--model", model, *orl[1:], *options, *often]
        cpu = _cpu_of_steps(command, folder, folder / "runs" / "orl" / "metrics.jsonl")
        lines = [msgspec.json.decode(line) for line in (folder / "runs/orl/metrics.jsonl").read_bytes().splitlines()]
        wall = statistics.median(row["step_seconds"] for row in lines if row["kind"] == "train")
        held = [row[HELD_OUT] for row in lines if row["kind"] == "eval"]
        theirs = [held[0]]
        for count in STEPS:
            words = ("--split", "test", "--model", f"{output}-{count * UPDATES}", "--json")
            told = subprocess.run([orl[0], "rollout", *orl[1:], *words], check=True, cwd=folder, capture_output=True)
            theirs.append(json.loads(told.stdout)["metrics"][HELD_OUT])
    rows = [(f"held out, step {step}", *pair) for step, *pair in zip((0, *STEPS), held, theirs, strict=True)]
    rows += [("cpu, s a step", cpu, other["cpu"] / STEPS[1]), ("wall, s a step", wall, other["wall"] / STEPS[1])]
    table = Table("the same model, game, group, rate", "orl local", "TRL", "TRL : orl")
    for what, mine, peer in rows:
        table.add_row(what, f"{mine:.3f}", f"{peer:.3f}", f"{peer / mine:.2f}")
    return table


def _cpu_of_steps(command: Sequence[str], folder: Path, metrics: Path) -> float:
    """Run `orl train`; return the CPU seconds of a step, from one row of its metrics to the next."""
    seen: list[float] = []
    with subprocess.Popen(command, cwd=folder, stdout=DEVNULL, stderr=DEVNULL, env={**os.environ, **CALM}) as training:
        while training.poll() is None:
            rows = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
            if rows > len(seen):
                used = Path(f"/proc/{training.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
                seen += [sum(map(int, used)) / os.sysconf("SC_CLK_TCK")] * (rows - len(seen))
            time.sleep(0.05)
    return statistics.median(later - sooner for sooner, later in pairwise(seen))


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; `quick` leaves the peers out, because their packages come from an index."""
    many_files()
    world = make_world(quick=quick)
    first, second, *rest = world.action
    letters = [token for letter in world.hf.decode([second]) for token in world.hf.encode(letter)]
    actions = {"usual": world.action, "odd": [first, *letters, *rest]}  # the same text in other ids
    with players(world, actions, () if quick else PINS) as found:
        console.print(costs(found, *(((2, 4), (1, 2), 1) if quick else (TURNS, AT_ONCE, ROUNDS))))
        console.print(fates(found, actions, 3))
        if isinstance(trl := found.get(PINS["trl"][0]), Peer):
            console.print(steps(trl))
    return []
