"""Golden command lines as a trainer's own parser gets them: with real folders, and the shape of a real model."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.slime import episode
from tests.two_pythons.environment import ROOT
from tests.two_pythons.planning import words_of

GOLDEN = ROOT / "tests" / "golden"
SHAPE = "qwen3-0.6B"  # the trainers' scripts have it under this name
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 28,
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "rope_theta": 1000000,
    "rms_norm_eps": 1e-6,
}
MODEL = ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-4B")  # of the golden files


def files_of(trainer: str) -> dict[str, Path]:
    """The golden commands of training with `trainer`, by name; those of `orl convert` have other parsers."""
    files = sorted((GOLDEN / trainer).glob("*.txt"))
    return {file.stem: file for file in files if not file.stem.startswith("convert_")}


def scripts_of(trainer: str) -> Path:
    """The folder of a trainer's checkout with the shapes of its models."""
    spec = find_spec(trainer)
    assert spec is not None
    return Path(next(iter(spec.submodule_search_locations or ()))).parent / "scripts" / "models"


def make_model(folder: Path, config: dict[str, Any] = CONFIG) -> Path:
    """A checkpoint's tokenizer and configuration, without weights, which no parser reads."""
    made = episode.make_checkpoint(folder)
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return made


def golden_words(file: Path, here: Path, model: Path, *, first: str) -> list[str]:
    """Return the arguments of train.py in a golden file, from `first` on. The shape of the model precedes it."""
    text = file.read_text(encoding="utf-8").replace("HERE", str(here))
    words = words_of(text)
    words = [str(model) if word in MODEL or word.startswith("/path/to/Qwen3") else word for word in words]
    run = here / "runs" / "run"
    for folder in (run, here / "megatron-ckpt"):
        folder.mkdir(parents=True, exist_ok=True)
    (run / f"{file.parent.name}.json").write_text("{}", encoding="utf-8")
    return words[words.index(first) :]


def on_an_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell Megatron's parser the architecture that it asks a GPU for, and set the variable that it asks for."""
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    arguments = _quietly(lambda: importlib.import_module("megatron.training.arguments"))
    monkeypatch.setattr(arguments, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))


def parse_slime(words: list[str], monkeypatch: pytest.MonkeyPatch) -> Namespace:
    """The arguments of a command line, by slime's own parser."""
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    return _quietly(lambda: importlib.import_module("slime.utils.arguments").parse_args())


def _quietly(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs: what Megatron lacks on a CPU
        return call()
