"""recoveries.jsonl of a run: one line for each restart of the trainer."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from orl_rollout.edge.files import read_lines

FILE = "recoveries.jsonl"


class Recovery(Struct, frozen=True, kw_only=True):
    """One restart, the `attempt`-th of the run. After a lack of GPU memory, `option` is `after` instead of `before`.

    `checkpoint` is the number of the checkpoint that it continues; None if there is none and it begins again.
    `error` is how the attempt before it ended, `seconds` how long the run had lasted then.
    """

    attempt: int
    option: str = ""
    before: str = ""
    after: str = ""
    checkpoint: int | None = None
    error: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """The restart in one line."""
        why = "GPU memory ran out" if self.option else "An engine died"
        begins = "from the beginning" if self.checkpoint is None else f"from checkpoint {self.checkpoint}"
        change = f" with {self.option} {self.after} instead of {self.before}" if self.option else ""
        return f"{why}. Restart {self.attempt} {begins}{change}"


def append(folder: Path, recovery: Recovery) -> None:
    """Add a restart to the record of the run in `folder`."""
    with (folder / FILE).open("ab") as file:
        file.write(msgspec.json.encode(recovery) + b"\n")


def read(folder: Path) -> tuple[Recovery, ...]:
    """Return the restarts of the run in `folder`. Torn lines are left out."""
    recoveries: list[Recovery] = []
    path = folder / FILE
    for line in read_lines(path) if path.is_file() else ():
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            recoveries.append(msgspec.json.decode(line, type=Recovery))
    return tuple(recoveries)
