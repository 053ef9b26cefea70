"""Log records can be shown on a terminal: no control characters from outside, no secret, also in tracebacks."""

from __future__ import annotations

import base64
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from orl_rollout import logs
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.logs import QUIET_SECONDS, Sparing, keep_out, logger_of, shown

PACKAGES = Path(__file__).parents[2] / "packages"
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r"
SECRET = "the-hidden-value"
ENCODED = base64.b64encode(SECRET.encode()).decode()


@pytest.fixture
def said() -> Iterator[io.StringIO]:
    """Return the output of a handler of the host, its format with the traceback."""
    keep_out(Scrubber([SECRET]))
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger().addHandler(handler)
    yield stream
    logging.getLogger().removeHandler(handler)
    keep_out(Scrubber(()))


def unfit(text: str) -> list[str]:
    return [character for character in text if character not in "\n\t" and not character.isprintable()]


def test_records_and_their_tracebacks_are_made_fit_to_be_shown(said: io.StringIO):
    logger = logger_of("orl.test")
    try:
        try:
            raise ValueError(f"inner {SECRET} {HOSTILE}")
        except ValueError as inner:
            raise RuntimeError(f"outer {HOSTILE}") from inner
    except RuntimeError:
        logger.exception("task %s of %s", HOSTILE, ENCODED)
    text = said.getvalue()
    assert "inner [secret]" in text
    assert "outer" in text
    assert "Traceback" in text
    assert SECRET not in text
    assert ENCODED not in text
    assert unfit(text) == []


def test_what_is_fit_to_be_shown_stays_as_it_is(said: io.StringIO):
    logger_of("orl.test").warning("Größe %d\t%s", 3, "日本語")
    assert said.getvalue() == "Größe 3\t日本語\n"
    assert shown("two\nlines") == "two\nlines"


def test_warnings_about_the_same_come_once_a_minute(said: io.StringIO, monkeypatch: pytest.MonkeyPatch):
    now = 0.0
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: now))
    sparing = Sparing(logger_of("orl.test"))
    for now in (0.0, QUIET_SECONDS - 1, QUIET_SECONDS):
        for about in ("a", "b"):
            sparing.warn(f"{about}{now:g}", about)
    assert said.getvalue().split() == ["a0", "b0", "a60", "b60"]


def test_no_module_of_the_packages_has_a_logger_of_its_own():
    own = re.compile(r"^ *logger = logging\.", re.MULTILINE)
    found = [path.name for path in PACKAGES.rglob("*.py") if own.search(path.read_text(encoding="utf-8"))]
    assert {*found} <= {"logs.py"}
