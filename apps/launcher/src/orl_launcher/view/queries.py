"""Questions to the index of a journal: episodes that match a filter, the group of one, all attempts at its task."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from orl_core.errors import ConfigError

from orl_launcher.view.index import VERDICTS

PAGE = 50  # episodes
GROUP = 32  # episodes of a group, or attempts at a task, that are shown
ORDERS = {
    "training first": "held_out, id DESC",  # episodes that train, and tokens in colour
    "newest": "id DESC",
    "oldest": "id",
    "highest reward": "reward DESC NULLS LAST, id",
    "lowest reward": "reward ASC NULLS LAST, id",
}
_COLUMNS = "episodes.id, e.name, t.name, x.name, step, held_out, reward, verdict, turns, seconds, time"
_NAMES = (
    "JOIN names e ON e.id = environment JOIN names t ON t.id = episodes.task JOIN names x ON x.id = episodes.ending"
)
_BOUNDS = (
    ("step_from", "step >= ?"),
    ("step_to", "step <= ?"),
    ("reward_from", "reward >= ?"),
    ("reward_to", "reward <= ?"),
)


class EpisodeLine(Struct, frozen=True, kw_only=True):
    """One row of a list of episodes. `reward` is None where the episode failed."""

    number: int
    environment: str
    task: str
    ending: str
    step: int | None
    held_out: bool
    reward: float | None
    verdict: str
    turns: int
    seconds: float
    time: float


class Filter(Struct, frozen=True, kw_only=True):
    """A choice of episodes, as the form of the page sends it. An empty text chooses all.

    Raises:
        ConfigError: a bound is no number, or a choice does not exist.
    """

    environment: str = ""
    ending: str = ""
    verdict: str = ""
    kind: str = ""
    task: str = ""
    step_from: str = ""
    step_to: str = ""
    reward_from: str = ""
    reward_to: str = ""
    order: str = next(iter(ORDERS))

    def __post_init__(self) -> None:
        for name, _ in _BOUNDS:
            _number(name, getattr(self, name))
        for name, known in (("verdict", VERDICTS), ("kind", ("training", "held-out")), ("order", tuple(ORDERS))):
            value = getattr(self, name)
            if value and value not in known:
                raise ConfigError(f"{name} is {value}. Choose one of: {', '.join(known)}")

    def where(self, database: sqlite3.Connection) -> tuple[str, list[Any]]:
        """Return the condition on `episodes`, and its values."""
        conditions, values = ["1"], list[Any]()
        for kind in ("environment", "task", "ending"):
            if name := getattr(self, kind):
                found = database.execute("SELECT id FROM names WHERE kind = ? AND name = ?", (kind, name)).fetchone()
                conditions.append(f"episodes.{kind} = ?")
                values.append(found[0] if found else -1)
        if self.verdict:
            conditions.append("verdict = ?")
            values.append(VERDICTS.index(self.verdict))
        if self.kind:
            conditions.append("held_out = ?")
            values.append(self.kind == "held-out")
        for name, condition in _BOUNDS:
            if text := getattr(self, name):
                conditions.append(condition)
                values.append(_number(name, text))
        return " AND ".join(conditions), values


class EpisodePage(Struct, frozen=True, kw_only=True):
    """One page of episodes, from 0, of `total` that match; `environments` and `endings` are all that there are."""

    lines: tuple[EpisodeLine, ...]
    total: int
    page: int
    environments: tuple[str, ...]
    endings: tuple[str, ...]

    @property
    def pages(self) -> int:
        """Return the number of pages, at least one."""
        return max(1, -(-self.total // PAGE))


def filter_of(query: Mapping[str, str]) -> Filter:
    """Return the filter in the query of an address. Other keys are left alone.

    Raises:
        ConfigError: as Filter.
    """
    return Filter(**{name: query[name].strip() for name in Filter.__struct_fields__ if query.get(name, "").strip()})


def page_of(database: sqlite3.Connection, chosen: Filter, page: int) -> EpisodePage:
    """Return page `page`, from 0, of the episodes that match; the last one, if there are fewer."""
    where, values = chosen.where(database)
    total = database.execute(f"SELECT count(*) FROM episodes WHERE {where}", values).fetchone()[0]  # noqa: S608
    page = min(page, max(0, (total - 1) // PAGE))
    # The page is chosen first: names of rows that are left out need not be looked up.
    inner = f"SELECT * FROM episodes WHERE {where} ORDER BY {ORDERS[chosen.order]} LIMIT ? OFFSET ?"  # noqa: S608
    order = ORDERS[chosen.order].replace("id", "episodes.id")
    rows = database.execute(
        f"SELECT {_COLUMNS} FROM ({inner}) AS episodes {_NAMES} ORDER BY {order}",  # noqa: S608
        [*values, PAGE, page * PAGE],
    )
    return EpisodePage(
        lines=tuple(map(_line, rows)),
        total=total,
        page=page,
        environments=_names(database, "environment"),
        endings=_names(database, "ending"),
    )


def line_of(database: sqlite3.Connection, number: int) -> EpisodeLine | None:
    """Return the episode of this number; None if there is none."""
    rows = database.execute(f"SELECT {_COLUMNS} FROM episodes {_NAMES} WHERE episodes.id = ?", (number,))  # noqa: S608
    return next(map(_line, rows), None)


def last_number(database: sqlite3.Connection) -> int:
    """Return the number of the last episode; 0 if there is none."""
    return database.execute("SELECT coalesce(max(id), 0) FROM episodes").fetchone()[0]


def group_of(database: sqlite3.Connection, line: EpisodeLine) -> tuple[EpisodeLine, ...]:
    """Return the rollouts of the same task in the same step, the first GROUP."""
    return _same_task(database, line, "AND step IS ? AND held_out = ?", (line.step, line.held_out))


def attempts_of(database: sqlite3.Connection, line: EpisodeLine) -> tuple[EpisodeLine, ...]:
    """Return the rollouts of the same task in all steps: those of the first and the last half of GROUP."""
    first = _same_task(database, line, "", (), half=True)
    last = _same_task(database, line, "", (), half=True, last=True)
    return tuple({one.number: one for one in (*first, *last)}.values())


def _same_task(
    database: sqlite3.Connection,
    line: EpisodeLine,
    condition: str,
    values: tuple[Any, ...],
    *,
    half: bool = False,
    last: bool = False,
) -> tuple[EpisodeLine, ...]:
    way = "DESC" if last else "ASC"
    rows = database.execute(
        f"SELECT {_COLUMNS} FROM episodes {_NAMES} WHERE episodes.task ="  # noqa: S608
        f" (SELECT id FROM names WHERE kind = 'task' AND name = ?) {condition}"
        f" ORDER BY step {way}, episodes.id {way} LIMIT {GROUP // 2 if half else GROUP}",
        (line.task, *values),
    )
    found = tuple(map(_line, rows))
    return found[::-1] if last else found


def _line(row: tuple[Any, ...]) -> EpisodeLine:
    number, environment, task, ending, step, held_out, reward, verdict, *rest = row
    turns, seconds, time = rest
    return EpisodeLine(
        number=number,
        environment=environment,
        task=task,
        ending=ending,
        step=step,
        held_out=bool(held_out),
        reward=reward,
        verdict=VERDICTS[int(verdict)],
        turns=turns,
        seconds=seconds,
        time=time,
    )


def _names(database: sqlite3.Connection, kind: str) -> tuple[str, ...]:
    return tuple(name for (name,) in database.execute("SELECT name FROM names WHERE kind = ? ORDER BY name", (kind,)))


def _number(name: str, text: str) -> float:
    try:
        return float(text) if text else 0.0
    except ValueError:
        raise ConfigError(f"{name} is {text}. Give a number") from None
