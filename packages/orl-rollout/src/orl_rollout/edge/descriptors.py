"""The descriptors of this process: sockets, pipes and files share one limit (`ulimit -n`)."""

from __future__ import annotations

import errno
import resource
from contextlib import suppress

MOST = 1 << 20  # a program that inherits a limit of billions may look at each descriptor
SOCKETS = 2.1  # of one rollout, as measured: its session, its pings, its engine


def raise_limit() -> int:
    """Raise the soft limit to the hard one, if the machine allows it. Return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return MOST if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft


def none_left(fault: BaseException | None) -> bool:
    """Return whether `fault` says that no descriptor is left, in this process or on this machine."""
    return isinstance(fault, OSError) and fault.errno in {errno.EMFILE, errno.ENFILE}
