"""The layouts of a run: how GPUs of one size train and sample, and which of them fit.

The numbers are those of `memory`, of which the plan of a run is made.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, structs
from orl_rollout.memory import ModelShape

from orl_local.engine.engine_plan import EngineChoice
from orl_local.memory import Demand, Need, adapted, need_of

COUNTS, SIZES = (1, 2, 4, 8), (24, 48, 80, 141)  # GPUs that are for rent: how many, and of how many GB
GB = 10**9
LORA_RANK = 16
LEGEND = """\
whole: each GPU that trains has all weights; sharded: they share a copy (--sharding)
2+2: two train, two only sample (--num-gpus 4 --rollout-gpus 2); -: too large"""


class Layout(Struct, frozen=True, kw_only=True):
    """One use of some GPUs. `ranks` train, `engines` only sample; without these each GPU does both.

    `sharded`: the ranks share one copy of the weights.
    """

    ranks: int
    engines: int
    sharded: bool
    need: Need

    def __str__(self) -> str:
        apart = f"{self.ranks}+{self.engines} " if self.engines else ""
        return "-" if self.need.lacking else f"{apart}{'sharded' if self.sharded else 'whole'}"


def layouts(shape: ModelShape, demand: Demand, engine: EngineChoice, gpus: int, total: int) -> list[Layout]:
    """Return the layouts of `gpus` GPUs of `total` bytes each: those that fit, the best first, then the others.

    Whole weights on one rank of a divided layout stand for whole weights on several.
    """

    def layout(ranks: int, *, sharded: bool) -> Layout:
        choice = structs.replace(engine, engine="sglang", apart=ranks < gpus)
        need = need_of(shape, demand, choice, total, ranks if sharded else 1)
        return Layout(ranks=ranks, engines=gpus - ranks, sharded=sharded, need=need)

    places = [(gpus, False), (gpus, True), *((ranks, ranks > 1) for ranks in range(1, gpus))]
    allowed = [
        (ranks, sharded)
        for ranks, sharded in places
        if sharded in demand.sharded and ranks > sharded and not (gpus - ranks or gpus) % engine.each
    ]
    every = [layout(ranks, sharded=sharded) for ranks, sharded in allowed]
    return sorted(every, key=lambda one: one.need.lacking != "")


def best(shape: ModelShape, demand: Demand, engine: EngineChoice, size: int) -> dict[int, Layout]:
    """Return the best layout for each of COUNTS that allows one, of GPUs of `size` GB, whether it fits or not."""
    every = ((count, layouts(shape, demand, engine, count, size * GB)) for count in COUNTS)
    return {count: some[0] for count, some in every if some}


def fewest(layout_of: Mapping[int, Layout]) -> str:
    """Return the least number of GPUs that are enough, and their layout."""
    return next((f"{count}: {layout}" for count, layout in layout_of.items() if not layout.need.lacking), "-")


def table(shape: ModelShape, demand: Demand, engine: EngineChoice) -> str:
    """Return lines that say which layouts fit on GPUs for rent, and how many of these adapters need."""
    columns = [best(shape, demand, engine, size) for size in SIZES]
    rows = {f"{count} GPU{'s' * (count > 1)}": [str(one.get(count, "-")) for one in columns] for count in COUNTS}
    if not demand.sizes.lora_rank:
        smaller = structs.replace(demand.sizes, **adapted(demand.sizes, LORA_RANK))
        other = structs.replace(demand, sizes=smaller)
        rows[f"--lora-rank {LORA_RANK}"] = [fewest(best(shape, other, engine, size)) for size in SIZES]
    rows = {"GPUs for rent": [f"{size} GB" for size in SIZES], **rows}
    lines = (f"{name:<16}" + "".join(f"{cell:>16}" for cell in cells) for name, cells in rows.items())
    return "\n".join((*lines, LEGEND))
