"""The error tree, and the one place where foreign exceptions become ours.

    OrlError
    ├── ConfigError     a file, an option or an environment variable is wrong: refused at load time
    ├── EngineError     the inference engine failed: -Timeout, -Unavailable, -Refused, -AnswerError (law L1)
    ├── SessionError    the environment or the way to it failed: the same four; Overloaded, SessionLost
    ├── RenderError     messages could not become token ids, or the tokenizer fails its certificate
    └── RunAborted      the breaker: too many rollouts end in ERROR; the only exception that leaves an adapter

Exceptions are for broken machinery. How an episode ends (`StopReason`) and what a model gets wrong (`ParseFailure`)
are values. A wrong call of a function is a TypeError (`expect`) or a ValueError. This module knows nothing of asyncio:
cancellation is a `BaseException` and passes through `boundary`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from types import UnionType
from typing import Any, AnyStr

LONGEST_MESSAGE = 1 << 14  # characters of a foreign exception's text
_PYO3 = "pyo3_runtime"  # the module of PanicException, a class that every extension in Rust has of its own


class OrlError(Exception):
    """The root: every exception that this project raises on purpose."""


class ConfigError(OrlError):
    """A configuration is wrong; the message names the file and the `$.path`."""


class EngineError(OrlError):
    """The inference engine failed. A subclass names the cause, if it is known."""


class EngineTimeout(EngineError):
    """The engine did not answer in time."""


class EngineUnavailable(EngineError):
    """The engine cannot be reached, is overloaded or broke off its answer: the same request may succeed later."""


class EngineRefused(EngineError):
    """The engine refuses the request, or would: the same request fails again."""


class EngineAnswerError(EngineError):
    """The engine's answer breaks law L1: missing, short, non-finite or misaligned logprobs, or no ids at all."""


class SessionError(OrlError):
    """The environment failed. A subclass names the cause, if known; a fault of the environment's own code has none."""


class SessionTimeout(SessionError):
    """The environment did not answer in time."""


class SessionUnavailable(SessionError):
    """The server cannot be reached, is busy or broke off its answer: the same request may succeed later."""


class SessionRefused(SessionError):
    """The server refuses the request: the same request fails again."""


class SessionAnswerError(SessionError):
    """The server's answer cannot be used. `answer` is its text, or the first part of it, where any was read."""

    def __init__(self, message: str, *, answer: str = "") -> None:
        super().__init__(message)
        self.answer = answer


class RenderError(OrlError):
    """Messages cannot be expressed as token ids under the laws, or the tokenizer fails its certificate."""


class RunAborted(OrlError):
    """Too many rollouts of this run end in ERROR; training on would train on nothing."""


@contextmanager
def boundary(error: type[OrlError], what: str) -> Generator[None]:
    """Convert any foreign exception inside the block to `error`, naming the boundary that it crossed.

    Errors of ours pass unchanged, and so does everything that is not an `Exception` (cancellation, Ctrl-C). A panic of
    a library in Rust is converted too: PyO3 raises it as a `BaseException`, but it is a failure like any other.
    `what` names the operation and its object ("calling tool 'guess'"); it opens the message.
    """
    try:
        yield
    except OrlError:
        raise
    except BaseException as exc:  # the one broad except of the repository
        if not isinstance(exc, Exception) and type(exc).__module__ != _PYO3:
            raise
        raise error(_message(what, exc)) from exc


def expect(kind: type | UnionType, name: str, value: object, advice: str = "") -> None:
    """Refuse an argument of another type, by its name.

    Raises:
        TypeError: `value` is no `kind`.
    """
    if not isinstance(value, kind):
        wanted = getattr(kind, "__name__", kind)
        raise TypeError(f"`{name}` is of type {type(value).__name__}. Give a {wanted}{advice}")


def expect_each(kind: type | UnionType, name: str, values: Iterable[object], advice: str = "") -> tuple[Any, ...]:
    """Return the members of an iterable; refuse one of another type, by its place.

    Raises:
        TypeError: `values` is no iterable, a text or a mapping, or one of them is no `kind`.
    """
    expect(list if issubclass(type(values), str | bytes | Mapping) else Iterable, name, values, advice)
    members = tuple(values)
    for place, value in enumerate(members):
        expect(kind, f"{name}[{place}]", value, advice)
    return members


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return one of the exceptions in `group`, one of ours before others."""
    first = (group.subgroup(OrlError) or group).exceptions[0]
    return first_error(first) if isinstance(first, BaseExceptionGroup) else first  # pyright: ignore[reportUnknownArgumentType]


def _message(what: str, exc: BaseException) -> str:
    text = ""
    with suppress(Exception):  # an exception whose text cannot be made, such as that of a huge integer
        text = cut(str(exc), LONGEST_MESSAGE).strip()
    return f"{what}: {type(exc).__name__}: {text or 'no message'}"


def cut(text: AnyStr, most: int) -> AnyStr:
    """Return the whole words among the first `most` characters of `text`; all of it if it is no longer.

    A word that does not end there could be half of a secret, which nobody could tell later: it is left out.
    """
    if len(text) <= most:
        return text
    parts = text[:most].rsplit(None, 1)
    return parts[0] if len(parts) > 1 else text[:0]
