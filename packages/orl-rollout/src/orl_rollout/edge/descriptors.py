"""The descriptors of this process: sockets, pipes and files share one limit (`ulimit -n`).

A request that finds none left was not sent, so it may be made again. Whoever counts rollouts says how long to wait. The
module knows no request.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import TypeVar

from orl_rollout.edge.retry import Waiting, retried

T = TypeVar("T")

MOST = 1 << 20  # a program that inherits a limit of billions may look at each descriptor
SOCKETS = 2.1  # of one rollout, as measured: its session, its pings, its engine
# How requests of this task, and of those it starts, wait for a descriptor.
WAITING: ContextVar[Callable[[], Waiting] | None] = ContextVar("WAITING", default=None)


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


def until_free(ask: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """Return the answer of `ask`, asked again while no descriptor is left, as WAITING says."""
    waiting = WAITING.get()
    return retried(ask, OSError, none_left, waiting()) if waiting else ask()
