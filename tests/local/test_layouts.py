"""Which layouts fit on GPUs for rent: the table of docs/one-machine.md, a dry run, and the plan of a run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_local import plan, planning
from orl_local.engine import engine_plan
from orl_local.engine.control import OWN_SHARE
from orl_local.engine.engine_plan import EngineChoice
from orl_local.memory import Demand, adapted, demand_of, divided, held, training
from orl_local.planning import COUNTS, GB, LEGEND, LORA_RANK, SIZES, Layout, best, layouts
from orl_local.settings import settings_of
from orl_rollout.gpus import Gpu
from orl_rollout.memory import ModelShape, shape_of
from orl_rollout.run_folder.contract import Run

from tests.kit import nvml
from tests.kit.model_shapes import QWEN3
from tests.local.fakes import described, make_run

ENGINE = EngineChoice(engine="sglang", reason="")
DENSE = [*QWEN3][:-1]
PAGE = Path(__file__).parents[2] / "docs" / "one-machine.md"


def run_of(folder: Path, model: str | Path, **trainer: Any) -> Run:
    """Return a run of 128 rollouts of 8192 ids in a step."""
    run = make_run(folder / "run", model, count=8, rollout_batch_size=8, n_samples=16, **trainer)
    rollout = structs.replace(run.config.rollout, context_tokens=8192)
    return structs.replace(run, config=structs.replace(run.config, rollout=rollout))


def demand(folder: Path, name: str, **trainer: Any) -> tuple[ModelShape, Demand]:
    """Return the model's shape and what such a run asks for."""
    config = run_of(folder, "m", **trainer).config
    return shape_of(QWEN3[name]), demand_of(config, settings_of(config, 10**9))


def fitting(some: list[Layout]) -> set[tuple[bool, bool]]:
    """Return the layouts that fit: whether they are sharded, and divided."""
    return {(one.sharded, one.engines > 0) for one in some if not one.need.lacking}


@pytest.mark.parametrize("trainer", [{}, {"lora_rank": LORA_RANK}, {"asynchronous": True}, {"sharding": "fsdp"}])
@pytest.mark.parametrize("name", DENSE)
def test_more_or_larger_gpus_take_no_layout_away(tmp_path: Path, name: str, trainer: dict[str, Any]):
    of = demand(tmp_path, name, **trainer)
    every = {(count, size): layouts(*of, ENGINE, count, size * GB) for count in COUNTS for size in SIZES}
    for (count, size), some in every.items():
        lacking = [bool(one.need.lacking) for one in some]
        assert lacking == sorted(lacking)
        assert all(one.ranks > 1 for one in some if "sharding" in trainer)  # else the plan refuses it
        for more in ((2 * count, size), *((count, larger) for larger in SIZES if larger > size)):
            assert fitting(some) <= fitting(every.get(more, some))


@pytest.mark.parametrize("name", DENSE)
def test_shards_and_adapters_need_less(tmp_path: Path, name: str):
    (shape, of), (_, smaller) = demand(tmp_path, name), demand(tmp_path, name, lora_rank=LORA_RANK)
    assert smaller.sizes == structs.replace(of.sizes, **adapted(of.sizes, LORA_RANK))
    for memory in (training, held):
        needed = [[memory(shape, divided(one.sizes, n)).total for n in (8, 4, 2)] for one in (smaller, of)]
        assert needed == [sorted(row) for row in needed]
        assert all(less < more for less, more in zip(*needed, strict=True))


def test_each_kind_of_engine_takes_the_share_that_its_option_says(tmp_path: Path):
    of = demand(tmp_path, "32B", lora_rank=LORA_RANK)
    own = structs.replace(ENGINE, options=("--mem-fraction-static=0.3",))
    other = structs.replace(ENGINE, engine="vllm", options=("--gpu-memory-utilization=0.3",))
    needs = [layouts(*of, each, 1, 141 * GB)[0].need for each in (own, other, ENGINE)]
    assert needs[0] == needs[1] != needs[2]


def test_an_engine_of_two_gpus_needs_half_on_each(tmp_path: Path):
    of = demand(tmp_path, "32B", lora_rank=LORA_RANK)
    two = structs.replace(ENGINE, options=("--tp-size", "2"))
    assert [one.engines for one in layouts(*of, two, 3, 48 * GB)] == [2]
    needs = [next(one.need for one in layouts(*of, each, 4, 48 * GB) if one.engines == 2) for each in (ENGINE, two)]
    assert needs[1].rollouts < OWN_SHARE * 48 * GB < needs[0].rollouts < 2.1 * needs[1].rollouts


@pytest.mark.parametrize(
    ("name", "count", "size", "trainer"),
    [
        ("1.7B", 2, 48, {}),
        ("8B", 4, 24, {"lora_rank": 16, "rollout_gpus": 2}),
    ],
)
def test_plan_has_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, count: int, size: int, trainer: dict[str, Any]
):
    gpu = Gpu(total=size * GB, free=size * GB)
    monkeypatch.setattr(engine_plan, "missing_for", lambda _: "")
    monkeypatch.setattr(planning, "gpu_memory", lambda: (gpu,) * count)
    made = planning.planned(run_of(tmp_path, described(tmp_path, QWEN3[name]), num_gpus=count, **trainer))
    first, report = layouts(*demand(tmp_path, name, **trainer), ENGINE, count, size * GB)[0], made.memory()
    assert report.problems == report.notes == ()
    numbers = [f"{one / 2**30:.1f}" for one in (first.need.training, first.need.rollouts)]
    assert report.table.splitlines()[-2].split() == ["sum", *numbers]
    assert (first.ranks, first.engines, first.sharded) == (made.ranks, count - made.ranks, made.sharded)


def test_dry_run_without_gpus_says_what_to_rent(tmp_path: Path):
    model = described(tmp_path, QWEN3["14B"])
    with nvml.driver():
        made = plan(run_of(tmp_path, model, num_gpus=4, rollout_gpus=2))
        assert LEGEND not in plan(run_of(tmp_path, model, engine="transformers")).memory
    lines = made.memory.splitlines()[:-1]  # the last one is about the disk
    assert [line.split()[0] for line in lines[1:5]] == list("1248")
    assert lines[5].split() == ["--lora-rank", "16", "-", "2:", "1+1", "whole", *["1:", "whole"] * 2]
    assert "\n".join(lines[6:]) == LEGEND
    assert max(map(len, lines)) <= 100 - 15  # the margin of doctor
    assert "--num-gpus 4: this machine has 0 GPUs" in made.problems


def test_page_has_the_fewest_gpus(tmp_path: Path):
    def cell(of: tuple[ModelShape, Demand], size: int) -> str:
        one = next((one for one in best(*of, ENGINE, size).values() if not one.need.lacking), None)
        return f"{one.ranks}{'s' * one.sharded}{f'+{one.engines}' if one.engines else ''}" if one else "-"

    rows = re.findall(r"(?m)^\| ([\d.]+B) \| (.+) \|$", PAGE.read_text("utf-8"))
    shown = {name: cells.split(" | ") for name, cells in rows}
    assert shown == {
        name: [cell(demand(tmp_path, name, **more), size) for more in ({}, {"lora_rank": LORA_RANK}) for size in SIZES]
        for name in DENSE
    }
