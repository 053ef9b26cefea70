"""The parsers of slime and of miles accept the golden command lines: FSDP's, and Megatron's with a checkout of it."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from orl_miles.launch import SHAPE as PRINT_MILES
from orl_slime.launch import PRINT_SHAPE as PRINT_SLIME

from tests.kit.golden import SHAPE, files_of, golden_words, make_model, on_an_h200, parse_slime, scripts_of
from tests.miles.host import parse

SLIME, MILES = files_of("slime"), files_of("miles")
MEGATRON = [name for name, file in MILES.items() if "--train-backend megatron" in file.read_text(encoding="utf-8")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.slime
@pytest.mark.megatron
@pytest.mark.parametrize("name", SLIME)
def test_slime_accepts_the_golden_command_line(name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    on_an_h200(monkeypatch)
    script = str(scripts_of("slime") / f"{SHAPE}.sh")
    printed = subprocess.run(["bash", "-c", PRINT_SLIME, "bash", script], capture_output=True, check=True)
    shape = printed.stdout.decode().split("\0")[:-1]
    args = parse_slime([*shape, *golden_words(SLIME[name], tmp_path, model, first="--actor-num-nodes")], monkeypatch)
    assert args.use_fault_tolerance
    assert (args.recompute_granularity, args.num_layers) == ("full", 28)


@pytest.mark.miles
@pytest.mark.parametrize("name", [name for name in MILES if name not in MEGATRON])
def test_fsdp_accepts_the_golden_command_line(name: str, model: Path, tmp_path: Path):
    args = parse(golden_words(MILES[name], tmp_path, model, first="--train-backend"))
    assert args.ft_components == ["rollout"]
    assert args.sglang_enable_deterministic_inference == args.deterministic_mode == (name == "true_on_policy")


@pytest.mark.miles
@pytest.mark.megatron
@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_accepts_the_golden_command_line(
    name: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    on_an_h200(monkeypatch)
    script = str(scripts_of("miles") / SHAPE)
    printed = subprocess.run([sys.executable, "-m", PRINT_MILES, script], capture_output=True, check=True)
    shape = shlex.split(printed.stdout.decode())
    args = parse([*shape, *golden_words(MILES[name], tmp_path, model, first="--train-backend")])
    assert (args.train_backend, args.recompute_granularity, args.num_layers) == ("megatron", "full", 28)
