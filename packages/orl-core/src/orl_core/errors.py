"""The error tree, and the one place where foreign exceptions become ours.

    OrlError
    ├── ConfigError     a file, an option or an environment variable is wrong: refused at load time
    ├── EngineError     the inference engine failed, or its answer breaks law L1
    ├── SessionError    the environment (or the way to it) failed
    ├── RenderError     messages could not become token ids, or the tokenizer fails its certificate
    └── RunAborted      the breaker: too many rollouts end in ERROR; the only exception that leaves an adapter

Exceptions are for broken machinery. How an episode ends (`StopReason`) and what a model gets wrong (`ParseFailure`)
are values. This module knows nothing of asyncio: cancellation is a `BaseException` and passes through `boundary`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator


class OrlError(Exception):
    """The root: every exception that this project raises on purpose."""


class ConfigError(OrlError):
    """A configuration is wrong; the message names the file and the `$.path`."""


class EngineError(OrlError):
    """The inference engine failed or broke its contract (missing, short, non-finite or misaligned logprobs)."""


class SessionError(OrlError):
    """The environment failed: unreachable, crashed, past a deadline, or its answer cannot be used."""


class RenderError(OrlError):
    """Messages cannot be expressed as token ids under the laws, or the tokenizer fails its certificate."""


class RunAborted(OrlError):
    """Too many rollouts of this run end in ERROR; training on would train on nothing."""


@contextmanager
def boundary(error: type[OrlError], what: str) -> Generator[None]:
    """Convert any foreign exception inside the block to `error`, naming the boundary that it crossed.

    Errors of ours pass unchanged, and so does everything that is not an `Exception` (cancellation, Ctrl-C).
    `what` names the operation and its object ("calling tool 'guess'"); it opens the message.
    """
    try:
        yield
    except OrlError:
        raise
    except Exception as exc:  # the one broad except of the repository
        text = str(exc).strip() or "no message"
        raise error(f"{what}: {type(exc).__name__}: {text}") from exc
