"""Our parsers against SGLang's own detectors: the time of one parse, and whether both read the same calls.

SGLang is installed without its dependencies, which are for GPUs, into an environment of its own next to this file; its
detectors run there as they are. For a well-formed reply the truth is known, because it was written from calls: who is
wrong there is wrong, and where we are it is a complaint. For a damaged reply there is no truth; a difference is put
down to what the two do by design (`difference` names each), or listed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import structs
from orl_core.messages import ParseFailure, ToolCall
from orl_core.tools import parse
from rich.console import Console
from rich.table import Table

from benchmarks.corpus import READERS, TOOLS, Reply, replies
from tests.core.tools.wire import WIRES

ENVIRONMENT = Path(__file__).parent / ".venv"
SGLANG = "sglang==0.5.12.post1"
NEEDED = ("orjson", "pydantic", "partial-json-parser", "openai")  # what the detectors import
HARMONY = "<|start|>assistant"  # in the prompt; SGLang's detector needs to see it
KNOWN = frozenset(tool.name for tool in TOOLS)
BARE = frozenset({"llama3", "pythonic"})
HARMLESS = frozenset({"", "prose before", "prose behind", "prose alone"})
Calls = list[list[Any]]  # [name, arguments]


class Detectors:
    """SGLang's detectors in another process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._tools = [{"name": tool.name, "description": "", "parameters": tool.parameters} for tool in TOOLS]

    def parse(self, detector: str, text: str, *, repeat: int = 1) -> dict[str, Any]:
        """`calls` as [name, arguments as text], `error` if it raised, `seconds` of the fastest parse."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the detectors' pipes are missing")
        text = HARMONY + text if detector == "gpt-oss" else text
        request = {"parser": detector, "tools": self._tools, "text": text, "repeat": repeat}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def detectors(command: Sequence[str]) -> Generator[Detectors]:
    """The detectors that `command` serves."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Detectors(process)
        finally:
            process.terminate()


def sglang() -> list[str]:
    """The command that serves SGLang's detectors; the first call makes their environment."""
    python = ENVIRONMENT / "bin" / "python"
    done = ENVIRONMENT / SGLANG
    if not done.exists():
        subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", "3.11", ENVIRONMENT], check=True)
        install = ["uv", "pip", "install", "--quiet", "--python", python]
        subprocess.run([*install, "--no-deps", SGLANG], check=True)
        subprocess.run([*install, *NEEDED], check=True)
        done.touch()
    return [str(python), str(Path(__file__).parent / "sglang_detectors.py")]


def well_formed(reply: Reply) -> bool:
    """Return whether it is known what the reply says. Prose before calls that no delimiter opens makes text of them."""
    return reply.damage in HARMLESS and not (reply.damage == "prose before" and reply.wire in BARE)


def difference(mine: Sequence[ToolCall | ParseFailure], theirs: Calls, error: str) -> str:
    """Return why the two differ: empty if they agree, `unexplained` if no rule fits."""
    good: Calls = [[call.name, call.arguments] for call in mine if isinstance(call, ToolCall)]
    known = [call for call in good if call[0] in KNOWN]
    failed = len(good) < len(mine)
    if theirs == good and not failed and not error:
        return ""
    if error:
        return "SGLang raises"
    if failed:
        rules = (
            (theirs == known, "a broken call: a typed failure here, nothing in SGLang"),
            (not theirs, "a broken call: the whole ones stay here, SGLang gives all up"),
            (len(theirs) > len(known), "a broken call: a typed failure here, SGLang guesses"),
            (True, "a broken call: a typed failure here, SGLang gives up or guesses some"),
        )
    else:
        loose = _loose(_decoded(theirs))
        rules = (
            (theirs == known, "an unknown tool: the loop answers it here, SGLang drops it"),
            (_decoded(theirs) == known, "arguments as a JSON string: decoded once here, a string in SGLang"),
            (loose in (_loose(known), _loose(good)), "values: SGLang strips strings, makes `null` None and 3.0 3"),
            (
                _shape(theirs) in (_shape(known), _shape(good)),
                "values: strict JSON of the type here, SGLang guesses",
            ),
            (_shape(_decoded(theirs)) in (_shape(known), _shape(good)), "values: strict JSON here, SGLang guesses"),
            (len(theirs) < len(known) and all(call in _loose(known) for call in loose), "SGLang misses a whole call"),
            (not good, "a bare call behind prose: text here, a call in SGLang"),
        )
    return next((name for applies, name in rules if applies), "unexplained")


def _shape(calls: Calls) -> list[Any]:
    """Names and argument names."""
    return [[name, list(of) if isinstance(of, dict) else of] for name, of in calls]


def _decoded(calls: Calls) -> Calls:
    return [[name, json.loads(of) if isinstance(of, str) and of[:1] == "{" else of] for name, of in calls]


def _loose(value: Any) -> Any:
    """`value` as far as SGLang keeps it: strings stripped, texts of null as null, whole numbers as integers."""
    match value:
        case str():
            return None if value.strip() in {"null", "None"} else value.strip()
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_loose(member) for member in value]
        case dict():
            return {key: _loose(member) for key, member in value.items()}
        case _:
            return value


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"not JSON": text}


def agreement(console: Console, served: Detectors, count: int) -> list[str]:
    """Print how far the two agree; replies that are well-formed and that we read wrongly."""
    kinds: dict[str, Counter[str]] = {name: Counter() for name in ("well-formed", "damaged")}
    rows: dict[tuple[str, str], Counter[str]] = {reader: Counter() for reader in READERS}
    complaints: list[str] = []
    unexplained: list[str] = []
    for reply in replies(count):
        mine = tuple(structs.replace(call, id="") for call in parse(reply.text, reply.format, tools=TOOLS).calls)
        answer = served.parse(reply.detector, reply.text)
        theirs = [[name, _arguments(text)] for name, text in answer["calls"]]
        why = difference(mine, theirs, answer["error"])
        kind = "well-formed" if well_formed(reply) else "damaged"
        kinds[kind][why] += 1
        rows[reply.wire, reply.detector][f"{kind} {'differ' if why else 'same'}"] += 1
        if well_formed(reply) and mine != (() if reply.damage == "prose alone" else reply.calls):
            complaints.append(f"{reply.wire}: well-formed, and read as {mine}: {reply.text!r}")
        if why == "unexplained":
            unexplained.append(f"{reply.wire} ({reply.damage}): {reply.text!r}: {mine} here, {theirs} there")
    table = Table("written as", "SGLang's detector", "well-formed: same", "differ", "damaged: same", "differ")
    for (wire, detector), counts in rows.items():
        places = (f"{kind} {same}" for kind in ("well-formed", "damaged") for same in ("same", "differ"))
        table.add_row(wire, detector, *(str(counts[place]) for place in places))
    console.print(table)
    table = Table("difference", "well-formed", "damaged")
    for why in dict.fromkeys(name for counter in kinds.values() for name, _ in counter.most_common()):
        table.add_row(why or "none: the same calls", *(str(counter[why]) for counter in kinds.values()))
    console.print(table)
    console.print(f"well-formed replies that we read wrongly: {len(complaints)}")
    for line in unexplained[:20]:
        console.print("unexplained:", line, markup=False)
    return complaints[:5]


def speed(console: Console, served: Detectors, sizes: Sequence[int], rounds: int) -> None:
    """Print microseconds of a parse, by the length of the text."""
    table = Table("written as", "SGLang's detector", *(f"{size:,} characters: orl, SGLang, ratio" for size in sizes))
    for wire, detector in READERS:
        cells = [_race(served, wire, detector, size, rounds) for size in sizes]
        table.add_row(wire, detector, *(f"{a:,.0f}, {b:,.0f}, {b / a:.1f}x" for a, b in cells))
    console.print(f"microseconds of one parse, the fastest of 20, medians of {rounds} interleaved rounds")
    console.print(table)


def _race(served: Detectors, wire_name: str, detector: str, size: int, rounds: int) -> tuple[float, float]:
    wire = WIRES[wire_name]
    line = "    total = sum(value for value in values)  # of all\n"
    content = (line * (size // len(line) + 1))[: max(size - 100, 1)]
    text = wire.text([ToolCall(name="edit_file", arguments={"path": "a.py", "content": content, "lines": [1, 2]})])
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        best = float("inf")
        for _ in range(20):
            started = time.perf_counter()
            parse(text, wire.format, tools=TOOLS)
            best = min(best, time.perf_counter() - started)
        ours.append(1e6 * best)
        theirs.append(1e6 * served.parse(detector, text, repeat=20)["seconds"])
    return statistics.median(ours), statistics.median(theirs)


def compare(console: Console, command: Sequence[str], *, quick: bool) -> list[str]:
    """Measure against the detectors that `command` serves, and print; what we read wrongly."""
    with detectors(command) as served:
        complaints = agreement(console, served, 2 if quick else 60)
        speed(console, served, (300,) if quick else (300, 3_000, 30_000), 1 if quick else 5)
    return complaints


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; what we read wrongly."""
    return compare(console, sglang(), quick=quick)
