"""A process opens the state that its event loops share."""

from __future__ import annotations

import gc
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from orl_core.config import EnvironmentConfig, RunConfig
from orl_rollout.runtime.stack import SharedState, spare_collector

from tests.kit.tokenizers import build, template


def test_garbage_collection_leaves_out_what_was_there_before(tmp_path: Path) -> None:
    """Full collections took a fifth of a client's time with 256 conversations."""
    build(template("qwen3")).save_pretrained(tmp_path)
    spare_collector.cache_clear()
    gc.unfreeze()
    before = len(gc.get_objects())
    config = RunConfig(environments={"A/B": EnvironmentConfig()})
    try:
        with closing(SharedState(config, str(tmp_path), "", 1)):
            assert gc.get_freeze_count() >= before / 2
            assert len(gc.get_objects()) < before / 2
    finally:
        gc.freeze()  # as tests/conftest.py does


def test_last_collection_sees_everything() -> None:
    """Triton's bindings printed a page of leaks at the end of each run."""
    program = (
        "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count()))\n"
        "from orl_rollout.runtime.stack import spare_collector; spare_collector(); print(gc.get_freeze_count() > 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["True", "0"]
