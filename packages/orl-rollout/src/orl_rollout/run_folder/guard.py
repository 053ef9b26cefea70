"""Runs a command and ends its process group when the process that asked for it dies, even by SIGKILL.

Run as a program: the id of that process, then the command. It must lead a process group. A change of its own parent
tells it that the process died. This needs no pipe, which other children could hold open.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from orl_rollout.edge import children

POLL_SECONDS = 0.2


def main(parent: int, command: Sequence[str]) -> int:
    """Return the exit code of `command`, 128 and the signal's number if a signal ended it."""
    child = subprocess.Popen(list(command))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the group gets it, and the command decides when to end
    while os.getppid() == parent:
        try:
            code = child.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return code if code >= 0 else 128 - code
    children.kill_group(os.getpgrp())
    return 128 + signal.SIGKILL


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
