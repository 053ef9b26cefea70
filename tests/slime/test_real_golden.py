"""slime's own parser, with that of Megatron-LM, accepts the golden command lines."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from orl_slime.launch import PRINT_SHAPE

from tests.kit.golden import SHAPE, files_of, golden_words, make_model, on_an_h200, parse_slime, scripts_of

pytestmark = [pytest.mark.slime, pytest.mark.megatron]
FILES = files_of("slime")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def shape() -> list[str]:
    script = str(scripts_of("slime") / f"{SHAPE}.sh")
    printed = subprocess.run(["bash", "-c", PRINT_SHAPE, "bash", script], capture_output=True, check=True)
    return printed.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("name", FILES)
def test_slime_accepts_the_golden_command_line(
    name: str, model: Path, shape: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    on_an_h200(monkeypatch)
    words = [*shape, *golden_words(FILES[name], tmp_path, model, first="--actor-num-nodes")]
    args = parse_slime(words, monkeypatch)
    assert args.use_fault_tolerance
    assert (args.recompute_granularity, args.num_layers) == ("full", 28)
