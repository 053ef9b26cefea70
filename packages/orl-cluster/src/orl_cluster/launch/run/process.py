"""A trainer's process: run to its end with its output in a log, and what the end of that log says."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from orl_rollout.edge import children, interrupt
from orl_rollout.edge.children import running

LOG = "trainer.log"  # in the run's folder
END_BYTES = 100_000  # of a log that are read for what went wrong
LINE_CHARACTERS = 400
MEMORY = ("OutOfMemoryError", "OOM-killed", "Out of memory")
GPU_MEMORY = re.compile(
    r"torch(?:\.cuda)?\.OutOfMemoryError|(?:CUDA|HIP) (?:error: )?out of memory|CUBLAS_STATUS_ALLOC_FAILED"
)
ENGINE = re.compile(r"^\s*(?:\x1b\[\d+m)?\(\w*SGLang\w*[ )]")  # what Ray writes before a line of an engine
# What Ray says of a node that is gone: `address` is known where the raylet of another node reports it.
LOST_NODE = re.compile(r"address: (?P<address>\S+) and node name: .* marked dead|because its node has died")
UNEQUAL = "check tensor equality failed"  # SGLang's words
# What Ray says if an engine's server refuses its actor, ends before the answer, or does not flush its cache.
ENGINE_GONE = re.compile(r"RayTaskError\((?:Connection|Timeout)Error\): .*ray::SGLangEngine\.\w+\(\)")
# The second is argparse's.
_EXCEPTION = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception|Aborted|Interrupt)(?:: |$)|^\S+: error: argument ")


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path,
    hidden: Iterable[str] = (),
    check: Callable[[], None] = interrupt.check,
) -> int:
    """Run `command`, append its output to `log` without the values of the variables `hidden`, return the exit code.

    It leads a process group of its own, which is ended when this function is left. `check` is called again and again
    while it runs, and may raise.

    Raises:
        Interrupted: a signal came.
    """
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # as in a script's `orl &`: the trainer inherits it
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[ignored:]
    with running(command, environment, log=log, hidden=hidden, signals=signals) as process:
        return children.exit_code(process, check)


class Failure(Struct, frozen=True, kw_only=True):
    """The end of a log. `error` is its last line that names an exception, else its last line.

    `lacks_memory` tells that memory ran out; `lacks_gpu_memory` that it was a GPU's; `in_engine` that it was in an
    engine and not in training. `engine_gone` tells that only an engine died. `lost_node` is the address of a node that
    Ray lost, or "a node" if Ray does not say. `unequal_weights` tells that engines did not hold the weights that they
    were sent.
    """

    error: str
    lacks_memory: bool = False
    lacks_gpu_memory: bool = False
    in_engine: bool = False
    engine_gone: bool = False
    lost_node: str = ""
    unequal_weights: bool = False


def failure_of(log: Path, *, start: int = 0) -> Failure:
    """Return what the end of a log says, as far as it was written after the byte `start`."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - END_BYTES))
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    named = [line for line in lines if _EXCEPTION.search(line)]
    last = (named or lines or ["it said nothing"])[-1]
    gpu = [line for line in lines if GPU_MEMORY.search(line)]
    lost = [match["address"] or "a node" for line in lines if (match := LOST_NODE.search(line))]
    return Failure(
        error=" ".join(last.split())[:LINE_CHARACTERS],
        lacks_memory=bool(gpu) or any(sign in line for line in lines for sign in MEMORY),
        lacks_gpu_memory=bool(gpu),
        in_engine=bool(gpu) and all(ENGINE.match(line) for line in gpu),
        engine_gone=_ended_by_engine(lines) and not lost and not gpu,
        lost_node=next(iter(lost), ""),
        unequal_weights=any(UNEQUAL in line for line in lines),
    )


def _ended_by_engine(lines: list[str]) -> bool:
    """Tell whether the trainer's last traceback, which no prefix of Ray marks, came from a call of a dead engine."""
    begins = max((at for at, line in enumerate(lines) if line.startswith("Traceback ")), default=len(lines))
    return any(ENGINE_GONE.search(line) for line in lines[begins:])
