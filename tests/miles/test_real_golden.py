"""miles' own parsers accept the golden command lines: those of FSDP, and with a checkout of Megatron-LM of Megatron."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from orl_miles.launch import SHAPE as PRINT_SHAPE

from tests.kit.golden import SHAPE, files_of, golden_words, make_model, on_an_h200, scripts_of
from tests.miles.host import parse

pytestmark = pytest.mark.miles
FILES = files_of("miles")
MEGATRON = [name for name, file in FILES.items() if "--train-backend megatron" in file.read_text(encoding="utf-8")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def shape() -> list[str]:
    script = str(scripts_of("miles") / SHAPE)
    printed = subprocess.run([sys.executable, "-m", PRINT_SHAPE, script], capture_output=True, check=True)
    return shlex.split(printed.stdout.decode())


@pytest.mark.parametrize("name", [name for name in FILES if name not in MEGATRON])
def test_fsdp_accepts_the_golden_command_line(name: str, model: Path, tmp_path: Path):  # shows E16
    args = parse(golden_words(FILES[name], tmp_path, model, first="--train-backend"))
    assert args.ft_components == ["rollout"]
    assert args.sglang_enable_deterministic_inference == args.deterministic_mode == (name == "true_on_policy")


@pytest.mark.megatron
@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_accepts_the_golden_command_line(
    name: str, model: Path, shape: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    on_an_h200(monkeypatch)
    args = parse([*shape, *golden_words(FILES[name], tmp_path, model, first="--train-backend")])
    assert (args.train_backend, args.recompute_granularity, args.num_layers) == ("megatron", "full", 28)
