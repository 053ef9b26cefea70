"""Copies stdin to stdout without the values of the variables that it is given by name (law L6).

Run as a program, between a process that may print its environment and that process's log. A process of its own, so that
the log continues when the one that started both is killed. It reads to the end of its input and knows nothing else.
"""

from __future__ import annotations

import codecs
import os
import select
import sys
from collections.abc import Sequence
from contextlib import suppress

from orl_rollout.edge.secrets import Scrubber

IDLE_SECONDS = 0.5  # then the text that was held back is written: a log that is followed should not lag
BLOCK = 1 << 16


def main(names: Sequence[str]) -> None:
    """Copy to the end of stdin. Text that may be the beginning of a value is held back until more comes."""
    scrubber = Scrubber(os.environ.get(name, "") for name in names)
    decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
    held, ended = "", False
    while not ended:
        block = b""
        if select.select([sys.stdin], [], [], IDLE_SECONDS if held else None)[0]:
            block = os.read(sys.stdin.fileno(), BLOCK)
            ended = not block
        held += decode(block, ended)
        cut = scrubber.settled(held) if block else len(held)
        _write(scrubber.scrub(held[:cut]).encode("utf-8", "surrogateescape"))
        held = held[cut:]


def _write(text: bytes) -> None:
    """Write `text`, or lose it on a full disk: the process whose log it is must not end for that."""
    rest = memoryview(text)
    with suppress(OSError):
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]


if __name__ == "__main__":
    main(sys.argv[1:])
