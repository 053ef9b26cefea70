"""The configuration in a worker whose trainer was started without orl."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from orl_cluster.hooks.worker import config_of
from orl_core.errors import ConfigError


def written(path: Path, turns: int) -> str:
    path.write_text(f"environments: {{A/B: {{max_turns: {turns}}}}}\n", encoding="utf-8")
    return str(path)


# shows D13
def test_variables_name_the_file_ours_before_the_cookbooks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ORL_CONFIG", "TRAIN_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="ORL_CONFIG"):
        config_of(Namespace())
    monkeypatch.setenv("TRAIN_CONFIG", written(tmp_path / "theirs.yaml", 3))
    assert config_of(Namespace()).environments["A/B"].max_turns == 3
    monkeypatch.setenv("ORL_CONFIG", written(tmp_path / "ours.yaml", 5))
    assert config_of(Namespace()).environments["A/B"].max_turns == 5
    assert config_of(Namespace(orl_config=written(tmp_path / "option.yaml", 7))).environments["A/B"].max_turns == 7
