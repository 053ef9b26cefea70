"""`orl train local --dry-run` and `orl doctor`: the refusals of training, and the engine of the rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_core.errors import ConfigError, OrlError
from orl_local import plan, planning
from orl_local import run as running
from orl_local.engine import engine_plan
from orl_local.engine.control import SHARE
from orl_local.engine.engine_plan import STARTED, EngineChoice, engine_of, graph_options, split_options
from orl_local.engine.engine_process import command_of
from orl_local.engine.local_model import load_model
from orl_local.run import train
from orl_local.settings import TINY
from orl_rollout.gpus import Gpu
from orl_rollout.run_folder.contract import Plan, Run
from orl_testing import VllmServer
from transformers import Qwen3ForCausalLM

from tests.local.fakes import make_run
from tests.local.stand_in import served


def planned(folder: Path, model: Path | str | None, *extra: str, **trainer: Any) -> Plan:
    return plan(structs.replace(make_run(folder / "run", model, **trainer), extra=extra))


def test_plan_says_what_a_run_would_do(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENREWARD_API_KEY", raising=False)
    made = planned(tmp_path, checkpoint)
    assert f"would train {checkpoint} with local" in made.command
    assert "2 steps of 2 x 4 rollouts, 2 updates each" in made.command
    assert "learning rate 0.001" in made.command
    assert "trains all weights with adamw, in micro-batches of 8192 ids; activations are kept" in made.command
    assert made.problems == ("not set in the environment: OPENREWARD_API_KEY",)
    assert made.notes == ()
    assert made.engine in made.command
    made = planned(tmp_path, checkpoint, lora_rank=8, max_tokens_per_gpu=512, optimizer="adafactor")
    assert "trains LoRA adapters of rank 8 with adafactor, in micro-batches of 512 ids" in made.command


@pytest.mark.parametrize("begins", [plan, train])
@pytest.mark.parametrize(
    ("model", "trainer", "subject"),
    [
        (None, {}, "trainer.model"),
        ("", {"flags": {"beta": 1}}, "--sglang-"),
        ("", {"load": "runs/x/checkpoint"}, "runs/x/checkpoint"),
        ("no/such/folder", {}, "no/such/folder"),
        ("", {"advantage_estimator": "ppo"}, "ppo"),
        ("", {"n_samples": 1}, "`n_samples` is 1"),
        ("", {"asynchronous": True}, "--async needs SGLang or vLLM"),
        ("", {"rollout_batch_size": 5}, "4 tasks, and a step takes 5"),
    ],
)
def test_setting_that_cannot_be_obeyed_is_refused(
    checkpoint: Path,
    tmp_path: Path,
    begins: Callable[[Run], Any],
    model: str | None,
    trainer: dict[str, Any],
    subject: str,
):
    """A dry run refuses what the training refuses."""
    with pytest.raises(ConfigError) as refusal:
        begins(make_run(tmp_path / "run", checkpoint if model == "" else model, **trainer))
    assert subject in str(refusal.value)


def test_workers_need_a_server(checkpoint: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"`rollout.workers` is 2.*engine: transformers"):
        plan(with_context(make_run(tmp_path / "run", checkpoint), workers=2))


def test_workers_need_one_server(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_plan, "missing_for", lambda _: "")
    monkeypatch.setattr(planning, "gpu_memory", lambda: (Gpu(total=80 << 30, free=80 << 30),) * 2)
    run = make_run(tmp_path / "run", checkpoint, engine="sglang", num_gpus=2)
    rollout = structs.replace(run.config.rollout, workers=2)
    with pytest.raises(ConfigError, match=r"`rollout.workers` is 2.*engine: sglang on GPUs 0, 1"):
        plan(structs.replace(run, config=structs.replace(run.config, rollout=rollout)))


def test_model_is_looked_at_without_its_weights(tmp_path: Path):
    with pytest.raises(ConfigError, match="model"):
        planned(tmp_path, tmp_path)
    unseen = planned(tmp_path, "some/name")
    assert "some/name" in " ".join(unseen.notes)


def test_engine_at_an_address_is_asked_whether_it_is_ready(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENREWARD_API_KEY", "or-key-0123456789")
    with served() as (server, _):
        assert planned(tmp_path, checkpoint, engine=server.url).problems == ()
    (problem,) = planned(tmp_path, checkpoint, engine=server.url).problems
    assert server.url in problem


async def test_a_vllm_at_an_address_is_refused(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", "or-key-0123456789")
    async with VllmServer(()) as server:
        (problem,) = (await asyncio.to_thread(planned, tmp_path, checkpoint, engine=server.url)).problems
    assert f"{server.url}: a vLLM is there" in problem


URL = "http://127.0.0.1:30000"


@pytest.mark.parametrize(
    ("wanted", "parameters", "missing", "engine", "reason"),
    [
        ("auto", TINY, "", "sglang", "not tiny"),
        ("auto", None, "", "sglang", "not tiny"),
        ("auto", TINY - 1, "", "transformers", "9,999,999"),
        ("auto", TINY, "no GPU", "transformers", "no GPU"),
        ("sglang", 1, "", "sglang", "trainer.local.engine"),
        ("transformers", TINY, "", "transformers", "trainer.local.engine"),
        (f"{URL}/", TINY, "no GPU", URL, "trainer.local.engine"),
        ("vllm", 1, "", "vllm", "trainer.local.engine"),
        ("auto", TINY, "no sglang", "vllm", "not tiny"),
    ],
)
def test_engine_is_chosen_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, wanted: str, parameters: int | None, missing: str, engine: str, reason: str
):
    monkeypatch.setattr(engine_plan, "missing_for", lambda kind: missing if kind in missing or "GPU" in missing else "")
    found = engine_of(wanted, parameters, ())
    assert found.engine == engine
    assert reason in found.reason


@pytest.mark.parametrize(("version", "fault"), [("0.31.2", "0.31.2"), ("0.32.0", ""), ("0.1.dev7+g1", "")])
def test_an_older_vllm_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, fault: str):
    for file in ("vllm/__init__.py", f"vllm-{version}.dist-info/METADATA"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(engine_plan, "gpu_memory", lambda: (Gpu(total=1),))
    found = engine_plan.missing_for("vllm")
    assert fault in found
    assert bool(fault) == bool(found)


@pytest.mark.parametrize("wanted", STARTED)
def test_engine_that_cannot_run_is_refused(monkeypatch: pytest.MonkeyPatch, wanted: str):
    monkeypatch.setattr(engine_plan, "missing_for", lambda _: "no GPU")
    with pytest.raises(ConfigError, match="no GPU"):
        engine_of(wanted, TINY, ())


def with_gpus(monkeypatch: pytest.MonkeyPatch, gib: int, count: int) -> None:
    monkeypatch.setattr(engine_plan, "missing_for", lambda _: "")
    monkeypatch.setattr(planning, "gpu_memory", lambda: (Gpu(total=gib << 30, free=gib << 30),) * count)


@pytest.mark.parametrize(
    ("trainer", "gpus", "ranks", "share", "releases"),
    [
        ({}, (0,), 1, SHARE, False),
        ({"num_gpus": 2}, (0, 1), 2, SHARE, False),
        ({"num_gpus": 4, "rollout_gpus": 3}, (1, 2, 3), 1, 0.0, False),
        ({"num_gpus": 4, "rollout_gpus": 1, "asynchronous": True}, (3,), 3, 0.0, False),
        ({"num_gpus": 2, "engine": URL}, (0,), 2, 0.0, False),
        ({"num_gpus": 2, "sharding": "fsdp"}, (0, 1), 2, SHARE, False),
        ({"num_gpus": 4, "rollout_gpus": 2, "flags": {"sglang-tp-size": 2}}, (2, 3), 2, 0.0, False),
        ({"num_gpus": 2, "sharding": "fsdp", "flags": {"sglang-tp-size": 2}}, (0, 1), 2, SHARE, False),
    ],
)
def test_gpus_are_divided(
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trainer: dict[str, Any],
    gpus: tuple[int, ...],
    ranks: int,
    share: float,
    releases: bool,
):
    with_gpus(monkeypatch, 80, 4)
    made = planning.planned(make_run(tmp_path / "run", checkpoint, **{"engine": "sglang", **trainer}))
    assert (made.engine.gpus, made.ranks, made.engine.memory_share) == (gpus, ranks, share)
    assert made.releases is releases or made.engine.url
    assert made.sharded is ("sharding" in trainer)


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"num_gpus": 5}, "4 GPUs"),
        ({"num_gpus": 2, "rollout_gpus": 2}, "has to train"),
        ({"num_gpus": 2, "engine": "transformers"}, "needs SGLang or vLLM"),
        ({"num_gpus": 2, "rollout_gpus": 1, "sharding": "fsdp"}, "--num-gpus 2 or more"),
        ({"num_gpus": 2, "sharding": "fsdp", "optimizer": "adafactor"}, "`optimizer: adamw`"),
        ({"num_gpus": 2, "rollout_gpus": 1, "engine": URL}, "--rollout-gpus 1"),
        ({"num_gpus": 4, "rollout_gpus": 3, "flags": {"sglang-tp-size": 2}}, "--sglang-tensor-parallel-size"),
        ({"flags": {"sglang-tp": 2}}, "a multiple of it"),
        ({"num_gpus": 4, "flags": {"sglang-tp-size": 2}}, "--sharding fsdp"),
    ],
)
def test_division_that_cannot_be_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trainer: dict[str, Any], said: str
):
    with_gpus(monkeypatch, 80, 4)
    with pytest.raises(ConfigError, match=said):
        planning.check(planning.planned(make_run(tmp_path / "run", checkpoint, **{"engine": "sglang", **trainer})))


@pytest.mark.parametrize(("gib", "fits"), [(80, True), (4, False)])
def test_rollouts_ahead_need_memory_for_both(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: int, fits: bool
):
    with_gpus(monkeypatch, gib, 1)
    extra = ("--sglang-mem-fraction-static", "0.3" if fits else "0.89")
    with nullcontext() if fits else pytest.raises(ConfigError, match="--async needs memory"):
        assert planned(tmp_path, checkpoint, *extra, engine="sglang", asynchronous=True).command


def test_options_of_sglang_are_split_from_other_words(monkeypatch: pytest.MonkeyPatch):
    flags = {
        "beta": 0.1,
        "sglang_mem_fraction_static": 0.4,
        "--sglang-disable-cuda-graph": True,
        "sglang-x": None,
        "sglang-y": False,
    }
    extra = ["--sglang-cuda-graph-bs", "1", "2", "--max-grad-norm", "2", "--sglang-stream-interval=1"]
    words, others = split_options({**flags, "sglang-max-total-tokens": 2.0}, extra)
    monkeypatch.setattr(engine_plan, "missing_for", lambda _: "")
    assert " ".join(engine_of("sglang", None, words).options) == (
        "--mem-fraction-static=0.4 --disable-cuda-graph --max-total-tokens=2 --cuda-graph-bs 1 2 --stream-interval=1"
    )
    assert others == ("--beta=0.1", "--max-grad-norm", "2")
    with pytest.raises(ConfigError, match="--sglang-mem-fraction-static needs the engine sglang"):
        engine_of("vllm", None, words)


def test_options_of_vllm_are_read_as_vllm_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(engine_plan, "missing_for", lambda _: "")
    flags = {"vllm-enable_prefix_caching": False, "vllm-enforce-eager": True, "vllm-hf_overrides.use_cache": False}
    extra = ["--vllm-async_scheduling=False", "--vllm-tensor_parallel_size", "2", "--vllm-gpu_memory_utilization=0.3"]
    found = engine_of("vllm", None, split_options(flags, extra)[0])
    assert " ".join(found.options) == (
        "--no-enable-prefix-caching --enforce-eager --hf-overrides.use_cache=False --no-async-scheduling "
        "--tensor-parallel-size 2 --gpu-memory-utilization=0.3"
    )
    assert (found.each, found.share) == (2, 0.3)
    with pytest.raises(ConfigError, match="--vllm-max-model-len"):
        engine_of("vllm", None, split_options({}, ["--vllm-max_model_len=9"])[0])


@pytest.mark.parametrize(("engine", "name"), [(kind, name) for kind in STARTED for name in sorted(STARTED[kind].OWNED)])
def test_option_that_orl_sets_is_refused(monkeypatch: pytest.MonkeyPatch, engine: str, name: str):
    monkeypatch.setattr(engine_plan, "missing_for", lambda _: "")
    for flags, extra in (({f"{engine}-{name}": "x"}, []), ({}, [f"--{engine}-{name}=x"])):
        with pytest.raises(ConfigError, match=name):
            engine_of(engine, None, split_options(flags, extra)[0])


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--vllm-max-model=9",), "--vllm-max-model"),
        (("--vllm-tensor-parallel", "2"), "--vllm-tensor-parallel"),
        (("--vllm-gpu_memory=0.3",), "--vllm-gpu-memory"),
        (("--vllm-weight-transfer-config.backend=nccl",), "--vllm-weight-transfer-config.backend"),
        (("--vllm-no-enable-sleep-mode",), "--vllm-no-enable-sleep-mode"),
        (("--vllm-enforce-eager", "-tp", "2"), "-tp"),
    ],
)
def test_option_by_a_part_of_its_name_is_refused(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], named: str):
    """The engines accept each start of a name, and the last option wins."""
    monkeypatch.setattr(engine_plan, "missing_for", lambda _: "")
    with pytest.raises(ConfigError, match=f"option {named} is refused"):
        engine_of("vllm", None, split_options({}, words)[0])


@pytest.mark.parametrize("engine", ["transformers", URL])
def test_option_of_an_sglang_that_is_not_started_is_refused(checkpoint: Path, tmp_path: Path, engine: str):
    with pytest.raises(ConfigError, match="--sglang-stream-interval"):
        planned(tmp_path, checkpoint, engine=engine, flags={"sglang-stream-interval": 1})


def test_sglang_starts_as_the_run_says(
    checkpoint: Path, tmp_path: Path, model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(running, "started", lambda _run, launch, *_: nullcontext(launch))
    choice = EngineChoice(engine="sglang", reason="", options=("--stream-interval=1", "--tp-size=2"), gpus=(2, 3))
    most = model.config.max_position_embeddings
    for context in (100, most + 1):
        run = with_context(make_run(tmp_path / "run", checkpoint, seed=7), context_tokens=context)
        rank: Any = None
        made = structs.replace(planning.planned(run), engine=choice, base="base", described=model.config.to_dict())
        opened: Any = running.open_engine(made, rank, 3)
        with opened as launch:
            words = command_of(launch, "http://127.0.0.1:1")
        assert words[words.index("--base-gpu-id") + 1] == "3"
        assert {"--model-path", "base", "--random-seed", "7", "--stream-interval=1", "--tp-size=2"} <= set(words)
        assert launch.gpus == 2
        assert words[words.index("--context-length") + 1] == str(min(context, most))


@pytest.mark.parametrize(
    ("gib", "samples", "option", "source", "graphs"),
    [
        (80, 4, "", "cuda_graph_max_bs_decode: int", ("--cuda-graph-max-bs-decode", "8")),
        (80, 4, "--disable-cuda-graph", "cuda_graph_max_bs_decode: int", ()),
        (80, 4, "", "cuda_graph_max_bs: int", ()),
        (80, 200, "", "cuda_graph_max_bs_decode: int", ()),
        (24, 4, "", "cuda_graph_max_bs_decode: int", ()),
    ],
)
def test_graphs_are_captured_for_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gib: int, samples: int, option: str, source: str, graphs: Any
):
    file = tmp_path / "sglang" / "srt" / "server_args.py"
    file.parent.mkdir(parents=True)
    file.write_text(source)
    (tmp_path / "sglang" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(engine_plan, "gpu_memory", lambda: (Gpu(total=gib << 30),))
    assert graph_options(2 * samples, (option,)) == graphs


@pytest.mark.parametrize(
    ("engine", "options", "share"),
    [
        ("transformers", (), None),
        (URL, (), 0.0),
        ("sglang", (), SHARE),
        ("sglang", ("--mem-fraction-static", "0.3"), 0.3),
        ("sglang", ("--mem-fraction-static=0.2", "--stream-interval", "1"), 0.2),
        ("sglang", ("--mem-fraction-static",), SHARE),
        ("vllm", ("--gpu-memory-utilization=0.3",), 0.3),
    ],
)
def test_memory_share_is_that_of_the_options(engine: str, options: tuple[str, ...], share: float | None):
    assert EngineChoice(engine=engine, reason="", options=options).memory_share == share


def with_context(run: Run, **rollout: Any) -> Run:
    config = structs.replace(run.config, rollout=structs.replace(run.config.rollout, **rollout))
    return structs.replace(run, config=config)


def test_model_of_a_hub_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(OrlError, match=r"127\.0\.0\.1 cannot be reached.* config\.json of Nobody/Model"):
        load_model("Nobody/Model")
