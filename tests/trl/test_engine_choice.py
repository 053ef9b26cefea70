"""The engine of a run's rollouts: every case of `trainer.trl.engine`, model and machine, and SGLang's own options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_core.errors import ConfigError
from orl_rollout.run_folder.contract import Run
from orl_trl import plan
from orl_trl.engine_choice import Choice, Machine, choose_engine
from orl_trl.engines import engine_of, launch_of, share_of
from orl_trl.local import TINY
from orl_trl.sglang_options import OWNED, options_of
from orl_trl.sglang_process import SHARE, command_of
from transformers import Qwen3ForCausalLM

from tests.trl.fakes import make_run

GPU = Machine(gpu=True, sglang=True)
NO_SGLANG = Machine(gpu=True, sglang=False)
CPU = Machine(gpu=False, sglang=True)
URL = "http://127.0.0.1:30000"


@pytest.mark.parametrize(
    ("wanted", "parameters", "machine", "engine", "reason"),
    [
        ("auto", TINY, GPU, "sglang", "not tiny"),
        ("auto", None, GPU, "sglang", "not tiny"),
        ("auto", TINY - 1, GPU, "transformers", "9,999,999"),
        ("auto", TINY, NO_SGLANG, "transformers", "`sglang`"),
        ("auto", TINY, CPU, "transformers", "GPU"),
        ("sglang", 1, GPU, "sglang", "trainer.trl.engine"),
        ("transformers", TINY, GPU, "transformers", "trainer.trl.engine"),
        (f"{URL}/", TINY, CPU, "address", "trainer.trl.engine"),
    ],
)
def test_engine_is_chosen_with_a_reason(
    wanted: str, parameters: int | None, machine: Machine, engine: str, reason: str
):
    choice = choose_engine(wanted, parameters, machine)
    assert choice.engine == engine
    assert reason in choice.reason
    assert (choice.url or choice.engine) in str(choice)
    assert choice.url == (URL if engine == "address" else "")


@pytest.mark.parametrize(("machine", "subject"), [(NO_SGLANG, "setup-gpu"), (CPU, "GPU")])
def test_sglang_that_cannot_be_is_refused(machine: Machine, subject: str):
    with pytest.raises(ConfigError) as refusal:
        choose_engine("sglang", TINY, machine)
    assert subject in str(refusal.value)


def test_plan_says_the_engine(checkpoint: Path, tmp_path: Path):
    made = plan(make_run(tmp_path / "run", checkpoint, engine="transformers"))
    assert made.engine.startswith("engine: transformers")
    assert made.engine in made.command


def test_options_of_sglang_stand_apart():
    flags = {"beta": 0.1, "sglang_mem_fraction_static": 0.4, "--sglang-disable-cuda-graph": True, "sglang-x": None}
    extra = ["--sglang-cuda-graph-bs", "1", "2", "--max-grad-norm", "2", "--sglang-stream-interval=1"]
    options = options_of(flags, extra)
    assert (
        " ".join(options.sglang)
        == "--mem-fraction-static 0.4 --disable-cuda-graph --cuda-graph-bs 1 2 --stream-interval=1"
    )
    assert options.flags == {"beta": 0.1}
    assert options.extra == ("--max-grad-norm", "2")


@pytest.mark.parametrize("name", sorted(OWNED))
def test_option_that_orl_sets_is_refused(name: str):
    for flags, extra in (({f"sglang-{name}": "x"}, []), ({}, [f"--sglang-{name}=x"])):
        with pytest.raises(ConfigError, match=name):
            options_of(flags, extra)


def test_switch_of_sglang_that_is_false_is_refused():
    with pytest.raises(ConfigError, match="sglang-disable-cuda-graph"):
        options_of({"sglang-disable-cuda-graph": False}, [])


@pytest.mark.parametrize("engine", ["transformers", URL])
def test_option_of_an_sglang_that_is_not_started_is_refused(checkpoint: Path, tmp_path: Path, engine: str):
    run = make_run(tmp_path / "run", checkpoint, engine=engine, flags={"sglang-stream-interval": 1})
    with pytest.raises(ConfigError, match="--sglang-stream-interval"):
        engine_of(run, None)


def test_sglang_starts_as_the_run_says(checkpoint: Path, tmp_path: Path, model: Qwen3ForCausalLM):
    run = with_context(
        make_run(tmp_path / "run", checkpoint, seed=7, flags={"sglang-stream-interval": 1}), context_tokens=100
    )
    words = command_of(launch_of(run, model), 1)
    assert {"--model-path", str(checkpoint), "--random-seed", "7", "--stream-interval", "1"} <= set(words)
    assert words[words.index("--context-length") + 1] == "100"
    most = model.config.max_position_embeddings
    assert launch_of(with_context(run, context_tokens=most + 1), model).context_tokens == most


@pytest.mark.parametrize(
    ("choice", "extra", "share"),
    [
        (Choice(engine="transformers", reason=""), (), None),
        (Choice(engine="address", reason="", url=URL), (), 0.0),
        (Choice(engine="sglang", reason=""), (), SHARE),
        (Choice(engine="sglang", reason=""), ("--sglang-mem-fraction-static", "0.3"), 0.3),
        (
            Choice(engine="sglang", reason=""),
            ("--sglang-mem-fraction-static=0.2", "--sglang-stream-interval", "1"),
            0.2,
        ),
        (Choice(engine="sglang", reason=""), ("--sglang-mem-fraction-static",), SHARE),
    ],
)
def test_share_of_the_memory_is_that_of_the_options(
    checkpoint: Path, tmp_path: Path, choice: Choice, extra: tuple[str, ...], share: float | None
):
    assert share_of(structs.replace(make_run(tmp_path / "run", checkpoint), extra=extra), choice) == share


def with_context(run: Run, **rollout: Any) -> Run:
    config = structs.replace(run.config, rollout=structs.replace(run.config.rollout, **rollout))
    return structs.replace(run, config=config)
