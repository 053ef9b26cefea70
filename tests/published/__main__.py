"""Fetch published templates, judge them, and write docs/models.md."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.published.judge import judge
from tests.published.sources import Published, fetch, published
from tests.published.table import Row, page
from tests.published.vocabularies import case

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def rows_of(template: Published, *, conversations: int, hostile: int) -> list[Row]:
    """Return the rows of one template: two if it has a reasoning switch, under any name."""
    one = case(template)
    has_switch = HFTokenizer(one.tokenizer, stop_ids=one.stop_ids).chat_template.switch is not None
    switches: dict[str, bool | None] = {"off": False, "on": True} if has_switch else {"": None}
    return [
        Row(
            template.name,
            template.source,
            switch,
            one.real,
            judge(one, thinking=thinking, conversations=conversations, hostile=hostile),
        )
        for switch, thinking in switches.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="just models", description=__doc__)
    parser.add_argument("--conversations", type=int, default=1000, help="random conversations for each case")
    parser.add_argument("--hostile", type=int, default=10_000, help="extends with control strings for each case")
    parser.add_argument("--more", type=Path, nargs="*", default=(), help="folders with further .jinja files")
    parser.add_argument("--only", default="", help="only templates whose name holds this; nothing is written")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="how many judge at once")
    told = parser.parse_args(arguments)
    fetch()
    templates = [one for one in published(*told.more) if told.only in one.name]
    judged = partial(rows_of, conversations=told.conversations, hostile=told.hostile)
    rows: list[Row] = []
    with ProcessPoolExecutor(told.processes) as pool:
        for found in pool.map(judged, templates):
            rows += found
            for row in found:
                verdict = row.verdict
                said = "; ".join(verdict.wrong) or "equal" if verdict.certified else f"refused: {verdict.reason}"
                print(row.name, row.switch, said[:300].replace("\n", " "), flush=True)
    if not told.only:
        PAGE.write_text(page(rows, conversations=told.conversations, hostile=told.hostile), encoding="utf-8")


if __name__ == "__main__":
    main()
