"""The estimate of a run on a cluster, from its command line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from orl_cluster.launch.command.command import Layout
from orl_cluster.launch.command.model_shape import estimate, sizes_of
from orl_core.errors import ConfigError
from orl_rollout.gpus import Gpu
from orl_rollout.memory import GIB, MemoryReport, engine_memory, shape_of, training_memory

from tests.kit.model_shapes import QWEN3

H100 = Gpu(total=80 * GIB, free=79 * GIB)
MEGATRON = (
    *("--use-dynamic-batch-size", "--max-tokens-per-gpu", "8192", "--recompute-granularity", "full"),
    *("--rollout-batch-size", "32", "--n-samples-per-prompt", "16", "--rollout-max-context-len", "8192"),
    *("--sglang-mem-fraction-static", "0.7"),
)
FSDP = ("--train-backend", "fsdp", "--gradient-checkpointing", *MEGATRON)


def layout(gpus: int, tensor: int = 1) -> Layout:
    return Layout(nodes=1, per_node=gpus, actor=gpus, rollout=gpus, colocate=True, tensor_parallel=tensor)


def parallel(tensor: int) -> tuple[str, ...]:
    return ("--tensor-model-parallel-size", str(tensor), "--rollout-num-gpus-per-engine", str(tensor))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "model"


def estimated(model: Path, name: str, argv: tuple[str, ...], shared: Layout, *gpus: Gpu) -> MemoryReport:
    model.mkdir(exist_ok=True)
    (model / "config.json").write_bytes(msgspec.json.encode(QWEN3[name]))
    return estimate(("--hf-checkpoint", str(model), *argv), shared, gpus)


@pytest.mark.parametrize(
    ("name", "argv", "shared", "fits"),
    [
        ("0.6B", MEGATRON, layout(1), True),
        ("4B", (*MEGATRON, *parallel(2)), layout(8, 2), True),
        ("8B", MEGATRON, layout(1), False),
        ("8B", FSDP, layout(8), True),
        ("8B", FSDP, layout(1), False),
        ("30B-A3B", (*MEGATRON, *parallel(4)), layout(4, 4), False),
        ("30B-A3B", (*MEGATRON, *parallel(4), "--optimizer-cpu-offload"), layout(8, 4), True),
    ],
)
def test_sizes_that_are_known_to_fit_or_not(
    model: Path, name: str, argv: tuple[str, ...], shared: Layout, *, fits: bool
):
    found = estimated(model, name, argv, shared, *[H100] * shared.per_node)
    assert not [*found.problems, *found.notes] if fits else any("training" in told for told in found.problems)


def test_every_change_that_is_proposed_fits(model: Path):
    """Each is put into the command line as it is written, and the estimate is made again."""
    argv = (*MEGATRON, *parallel(1), "--train-backend", "megatron")
    (told,) = estimated(model, "8B", argv, layout(2), H100, H100).problems
    proposed = [words.removeprefix("-- ").split() for words in told.partition("would fit: ")[2].split("; ")]
    assert [words[0] for words in proposed] == ["--num-gpus", "--optimizer-cpu-offload", "--lora-rank"]
    for option, *values in proposed:
        gpus = int(*values) if option == "--num-gpus" else 2
        changed = argv if option == "--num-gpus" else (*argv, option, *values)
        found = estimated(model, "8B", changed, layout(gpus), *[H100] * gpus)
        assert (found.problems, found.notes) == ((), ())


def test_context_longer_than_a_micro_batch_is_counted(model: Path):
    """A rollout of 32,768 ids trains alone; context parallelism divides it."""
    argv = (*MEGATRON, "--rollout-max-context-len", "32768")
    assert sizes_of(argv, layout(8)).packed == 32_768
    assert sizes_of((*argv, "--context-parallel-size", "4"), layout(8)).packed == 8192
    (told,) = estimated(model, "8B", argv, layout(1), Gpu(total=20 * GIB, free=20 * GIB)).problems
    assert "No single change is enough" in told


def test_memory_in_use_is_a_note(model: Path):
    found = estimated(model, "0.6B", MEGATRON, layout(1), Gpu(total=80 * GIB, free=12 * GIB))
    assert found.problems == ()
    assert [note.split()[0] for note in found.notes] == ["training"]
    assert "12.0 GiB are free" in found.table


def test_engine_that_holds_no_rollout_is_named(model: Path):
    argv = (*MEGATRON, "--rollout-max-context-len", "1048576")
    found = estimated(model, "0.6B", argv, layout(8), *[H100] * 8)
    training, told = found.problems
    assert (training.split()[0], told.split()[0]) == ("training", "engine")
    assert "--tp 4" in told
    assert "--max-context-len" in told


@pytest.mark.parametrize(
    ("more", "less"),
    [
        (MEGATRON, (*MEGATRON, "--optimizer-cpu-offload")),
        ((*MEGATRON, "--recompute-granularity", "selective"), MEGATRON),
        ((*MEGATRON, *parallel(2)), (*MEGATRON, *parallel(2), "--sequence-parallel")),
        (MEGATRON, (*MEGATRON, "--pipeline-model-parallel-size", "2")),
        (FSDP, (*FSDP, "--fsdp-cpu-offload")),
        (FSDP[3:], FSDP),
        (MEGATRON, (*MEGATRON[3:], "--micro-batch-size", "1", "--rollout-max-context-len", "4096")),
        (MEGATRON, (*MEGATRON, "--sglang-kv-cache-dtype", "fp8_e5m2")),
    ],
)
def test_options_are_obeyed(more: tuple[str, ...], less: tuple[str, ...]):
    shape, runs = shape_of(QWEN3["8B"]), [sizes_of(argv, layout(8)) for argv in (more, less)]
    needed = [training_memory(shape, sizes).total + engine_memory(shape, sizes).kv_cache for sizes in runs]
    assert needed[0] > needed[1]


def test_model_that_is_not_here_is_told(tmp_path: Path):
    found = estimate(("--hf-checkpoint", "Qwen/Qwen3-4B", *MEGATRON), layout(1), (H100,))
    assert "Qwen/Qwen3-4B is not on this machine" in found.table
    (tmp_path / "config.json").write_text("[]")
    assert "config.json" in estimate(("--hf-checkpoint", str(tmp_path), *MEGATRON), layout(1), ()).table


def test_name_of_a_hub_is_read_from_its_cache(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    revision = tmp_path / "models--Org--Model" / "snapshots" / ("0" * 40)
    revision.mkdir(parents=True)
    (revision.parents[1] / "refs").mkdir()
    (revision.parents[1] / "refs" / "main").write_text(revision.name)
    (revision / "config.json").write_bytes(msgspec.json.encode(QWEN3["4B"]))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    named = estimate(("--hf-checkpoint", "Org/Model", *MEGATRON), layout(8), ())
    assert named == estimated(model, "4B", MEGATRON, layout(8))


def test_share_that_is_no_number_is_refused(model: Path):
    with pytest.raises(ConfigError, match="mem-fraction"):
        estimated(model, "4B", (*MEGATRON, "--sglang-mem-fraction-static", "most"), layout(1))


def test_table_of_the_page_is_what_is_printed(model: Path):
    gpu = Gpu(total=int(79.2 * GIB), free=int(78.5 * GIB))
    table = estimated(model, "4B", (*MEGATRON, *parallel(4)), layout(8, 4), *[gpu] * 8).table
    page = (Path(__file__).parents[2] / "docs" / "memory.md").read_text("utf-8")
    assert "\n".join(f"    {line}".rstrip() for line in table.split("\n")) in page


def test_run_measured_on_an_h200_is_within_a_tenth():
    """The run of docs/evidence.md that ran out of memory: 7.62 GiB without the fused SwiGLU."""
    wide = {**QWEN3["0.6B"], "hidden_size": 96, "intermediate_size": 65_536, "num_hidden_layers": 3, "vocab_size": 384}
    wide |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    argv = (*MEGATRON, "--no-bias-swiglu-fusion")
    found = training_memory(shape_of(wide), sizes_of(argv, layout(1))).total
    assert abs(found / GIB - 7.62) < 0.76
