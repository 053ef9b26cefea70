"""A test that hangs ends, with the stacks of all threads, and Ctrl-C works in tests that a script starts with `&`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HANGS = """
import signal, time, pytest

@pytest.fixture
def stuck():
    yield
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        time.sleep(1)

def test_that_fails_before_it_hangs(stuck):
    pytest.fail("as it should")
"""


@pytest.mark.slow
def test_hang_ends_with_stacks_of_all_threads(tmp_path: Path) -> None:
    file = tmp_path / "test_hangs.py"
    file.write_text(HANGS, encoding="utf-8")
    options = ["-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), "-o", "faulthandler_timeout=1"]
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    command = [*ignoring, sys.executable, "-m", "pytest", *options, "--tb=line", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "in stuck" in done.stderr
