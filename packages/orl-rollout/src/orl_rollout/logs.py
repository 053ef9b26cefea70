"""The loggers of orl. Their records are safe to show in any handler.

Names, errors and results from outside may hold terminal escapes and values of secrets. One filter removes both from a
record and its traceback, so no call needs to do so. orl sets up no handler: the host program does.
"""

from __future__ import annotations

import logging
import math
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager

from orl_core.text import visible

from orl_rollout.edge.secrets import Scrubber

QUIET_SECONDS = 60.0  # between two warnings of `Sparing`
_works: list[Callable[[], str]] = []


class _Shown(logging.Filter):
    """Makes records safe to show. `scrubber` knows the secrets of the configuration that was used last."""

    scrubber: Scrubber | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the record's text and its traceback."""
        record.msg, record.args = shown(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = shown("".join(traceback.format_exception(record.exc_info[1])).rstrip())
            record.exc_info = None  # a handler would format it anew
        return True


_SHOWN = _Shown()


class Sparing:
    """Logs at most one warning a minute about each thing: what ends one rollout ends hundreds in the same way."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._latest: dict[str, float] = {}

    def warn(self, text: str, about: str = "") -> None:
        """Log `text` as a warning, unless the last one `about` the same was less than a minute ago."""
        now = time.monotonic()
        quiet = now - self._latest.get(about, -math.inf) < QUIET_SECONDS
        if not quiet:
            self._latest[about] = now
        self._logger.log(logging.DEBUG if quiet else logging.WARNING, "%s", text)


def logger_of(name: str) -> logging.Logger:
    """Return the logger of that name, with records that are safe to show."""
    logger = logging.getLogger(name)
    logger.addFilter(_SHOWN)
    return logger


def keep_out(scrubber: Scrubber) -> None:
    """Remove the secrets of `scrubber` from all later log records of this process."""
    _SHOWN.scrubber = scrubber


def shown(text: str) -> str:
    """Return `text` as it may be logged or printed: secrets masked, control characters made visible."""
    return visible(_SHOWN.scrubber.scrub(text) if _SHOWN.scrubber else text)


def say(text: str) -> None:
    """Print a line about the course of a run on stderr, as it may be shown. Warnings are logged instead."""
    print(shown(text), file=sys.stderr, flush=True)


@contextmanager
def working(text: Callable[[], str]) -> Generator[None]:
    """Let `work` return `text()` while the block runs."""
    _works.append(text)
    try:
        yield
    finally:
        _works.remove(text)


def work() -> str:
    """Return what this process does now, for a bar or a log; "" if nothing says so."""
    for text in _works[-1:]:
        return shown(text())
    return ""
