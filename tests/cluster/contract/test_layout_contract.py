"""The parsers of slime and of miles judge what orl writes for parallel layouts, with the shapes in their checkouts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.golden import CONFIG, make_model, on_an_h200, parse_slime
from tests.kit.model_shapes import QWEN3
from tests.miles.host import parse
from tests.two_pythons import planning

TP1, TP2 = (["--num-gpus", "2", "--tp", tensor] for tensor in ("1", "2"))
CUT = [*TP1, "--max-tokens-per-gpu", "1024", "--max-context-len", "8192"]  # of an episode, which may be longer
APART = ["--async", "--actor-gpus", "1", "--rollout-gpus", "1"]
OWN_ROUTER = ["--sglang-router-ip", "127.0.0.1"]  # the released one drops the request for routing
EP2 = ["--num-gpus", "4", "--tp", "2", "--", "--expert-model-parallel-size", "2", *OWN_ROUTER]
TENSOR, EXPERT, REPLAY = "tensor_model_parallel_size", "expert_model_parallel_size", "use_rollout_routing_replay"
ENGINES, EACH, GPUS = "rollout_num_gpus", "rollout_num_gpus_per_engine", "world_size"
OF_DENSE = {TENSOR: 2, EACH: 2, "colocate": True, "sequence_parallel": False, "use_tis": False, REPLAY: False}
OF_MIXTURE = {EXPERT: 2, "num_experts": 128, "sequence_parallel": True, "use_tis": True, REPLAY: True}
MOE = {**CONFIG, **QWEN3["30B-A3B"], "architectures": ["Qwen3MoeForCausalLM"]}

CASES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "slime megatron tp2": (TP2, OF_DENSE),
    "slime megatron pp2": ([*TP1, "--", "--pipeline-model-parallel-size", "2"], {"pipeline_model_parallel_size": 2}),
    "slime megatron cp2": (
        [*CUT, "--", "--context-parallel-size", "2"],
        {"context_parallel_size": 2, "max_tokens_per_gpu": 1024, "rollout_max_context_len": 8192},
    ),
    "slime megatron ep2": (EP2, OF_MIXTURE),
    "miles megatron tp2": (TP2, OF_DENSE),
    "miles megatron ep2": (EP2, OF_MIXTURE),
    "miles fsdp apart": (APART, {GPUS: 1, ENGINES: 1, EACH: 1, "colocate": False, "use_tis": True}),
    "miles fsdp wide engine": (TP2, {GPUS: 2, ENGINES: 2, EACH: 2}),
    "miles fsdp two engines": (TP1, {GPUS: 2, ENGINES: 2, EACH: 1}),
}


def marks(name: str) -> list[pytest.MarkDecorator]:
    trainer, backend, _ = name.split(maxsplit=2)
    return [getattr(pytest.mark, trainer), *([pytest.mark.megatron] if backend == "megatron" else [])]


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in CASES])
def test_parsers_read_a_parallel_layout_as_it_is_meant(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (trainer, backend, _), (argv, expected) = name.split(maxsplit=2), CASES[name]
    planning.alone(monkeypatch, tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    make_model(tmp_path / "model", MOE if argv is EP2 else CONFIG)
    shape = ["--model-args", "qwen3-30B-A3B" if argv is EP2 else "qwen3-0.6B"] if backend == "megatron" else []
    chosen = ["--train-backend", backend, "--model", "model", *shape]
    words = planning.words_of(planning.planned(capsys, trainer, sys.executable, *chosen, *argv))
    run = tmp_path / "runs" / "run"
    run.mkdir(parents=True)
    (run / f"{trainer}.json").write_text("{}", encoding="utf-8")
    words = words[next(place for place, word in enumerate(words) if word.startswith("--")) :]
    with capsys.disabled():  # Megatron hands the file descriptor of stderr to faulthandler
        if backend == "megatron":
            on_an_h200(monkeypatch)
        args = parse_slime(words, monkeypatch) if trainer == "slime" else parse(words)
    assert {option: getattr(args, option) for option in expected} == expected
