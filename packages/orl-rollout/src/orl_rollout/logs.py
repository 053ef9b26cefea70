"""The loggers of orl: what they hand to any handler can be shown, whoever said it.

Names, errors and results from outside may hold escapes that steer a terminal, and values of secrets. One filter takes
both out of a record and of its traceback, so that no call has to think of it. orl sets up no handler: that is its
host's to do.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

from orl_core.text import visible

if TYPE_CHECKING:
    from orl_rollout.secrets.secrets import Scrubber


class _Shown(logging.Filter):
    """Makes records of what may be shown. `scrubber` knows the secrets of the configuration that was last used."""

    scrubber: Scrubber | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Replace the record's text and its traceback."""
        record.msg, record.args = shown(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = shown("".join(traceback.format_exception(record.exc_info[1])).rstrip())
            record.exc_info = None  # a handler would format it anew
        return True


_SHOWN = _Shown()


def logger_of(name: str) -> logging.Logger:
    """Return the logger of that name, its records made fit to be shown."""
    logger = logging.getLogger(name)
    logger.addFilter(_SHOWN)
    return logger


def keep_out(scrubber: Scrubber) -> None:
    """Keep the secrets that `scrubber` knows out of all that this process logs from now on."""
    _SHOWN.scrubber = scrubber


def shown(text: str) -> str:
    """Return `text` as it may be logged or printed: secrets masked, control characters made visible."""
    return visible(_SHOWN.scrubber.scrub(text) if _SHOWN.scrubber else text)
