"""A process opens the state that its event loops share."""

from __future__ import annotations

import gc
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
        gc.unfreeze()
