"""The size of a comparison."""

from msgspec import Struct


class Plan(Struct, frozen=True, kw_only=True):
    """Sizes of a step, numbers of steps, and how often held-out tasks are played."""

    tasks: int = 6
    group: int = 8
    clean: int = 6
    faulty: int = 12
    every: int = 3
    held_out: int = 48
    seeds: tuple[int, ...] = (0, 1, 2)


ZEROS = Plan(group=16, clean=12, faulty=36, every=4, held_out=128)
EACH_GUESS = Plan(tasks=8, group=16, faulty=30, every=5, held_out=256)
QUICK = Plan(tasks=2, group=2, clean=1, faulty=1, every=1, held_out=2, seeds=(0,))
