"""Files of chat data: JSON lines, Parquet, and a folder that `datasets.load_dataset` reads with its splits.

Rows are written as they come, so that a journal may be larger than memory. A file gets its name when it is whole.
"""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect
from orl_core.errors import ConfigError
from orl_rollout.edge import interrupt

from orl_launcher.export.conversations import ChatRow
from orl_launcher.installation import to_install

FORMATS = ("jsonl", "parquet", "hf")
GROUP_ROWS = 256  # rows that are held until they are written as one group of Parquet
FILE = "data/{}-00000-of-00001.parquet"
SPLITS = {False: "train", True: "test"}  # of a folder for `datasets`, by `evaluation`
Add = Callable[[ChatRow], object]  # writes one row
CARD = """\
---
configs:
- config_name: default
  data_files:
{files}---

Episodes of {name} in chat format, written by `orl export`. `train` holds training episodes, `test` held-out ones.
`tools` and the arguments of calls are JSON texts.
"""


def check_format(form: str) -> None:
    """Refuse a format whose library is missing.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    if form != "jsonl" and find_spec("pyarrow") is None:
        raise ConfigError(f"--format {form} needs pyarrow, which is not installed. Run {to_install('parquet')}")


def write(rows: Iterable[ChatRow], output: Path, form: str, name: str) -> int:
    """Write `rows` to `output`, a file, or a folder if `form` is hf. Return their number; none writes no file.

    `output` does not exist yet. `name` is that of the run. A partial file is removed: on an error, on a signal, and
    before the first row, if a killed process left one.

    Raises:
        Interrupted: a signal came.
        OSError: it cannot be written.
    """
    part = output.with_name(f".{output.name}.part")
    count = 0
    try:
        _remove(part)
        opened = _folder(part, name) if form == "hf" else _parquet(part) if form == "parquet" else _lines(part)
        with opened as add:
            for row in rows:
                interrupt.check()
                add(row)
                count += 1
        if count:
            part.rename(output)
    finally:
        _remove(part)
    return count


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _lines(path: Path) -> Generator[Add]:
    with path.open("wb") as file:
        yield lambda row: file.write(msgspec.json.encode(row) + b"\n")


@contextmanager
def _parquet(path: Path) -> Generator[Add]:
    """Write groups of rows. The columns are those of ChatRow, whatever the first rows hold."""
    import pyarrow
    from pyarrow import parquet

    schema = pyarrow.schema([*_arrow(inspect.type_info(ChatRow))])
    rows: list[dict[str, Any]] = []
    with parquet.ParquetWriter(path, schema, compression="zstd") as file:

        def flush() -> None:
            file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            rows.clear()

        def add(row: ChatRow) -> None:
            rows.append(msgspec.to_builtins(row))
            if len(rows) >= GROUP_ROWS:
                flush()

        yield add
        if rows:
            flush()


@contextmanager
def _folder(path: Path, name: str) -> Generator[Add]:
    """Write one Parquet file for each split, and the card that names them."""
    (path / "data").mkdir(parents=True)
    adders: dict[bool, Add] = {}
    with ExitStack() as closing:

        def add(row: ChatRow) -> None:
            if row.evaluation not in adders:
                adders[row.evaluation] = closing.enter_context(_parquet(path / FILE.format(SPLITS[row.evaluation])))
                splits = [split for evaluation, split in SPLITS.items() if evaluation in adders]
                files = "".join(f"  - split: {split}\n    path: {FILE.format(split)}\n" for split in splits)
                (path / "README.md").write_text(CARD.format(files=files, name=name), encoding="utf-8")
            adders[row.evaluation](row)

        yield add


def _arrow(kind: inspect.Type, name: str = "") -> Any:
    """Return the type of a column; numbers of these names are small."""
    import pyarrow as pa

    match kind:
        case inspect.StructType():
            return pa.struct([(field.name, _arrow(field.type, field.name)) for field in kind.fields])
        case inspect.VarTupleType():
            return pa.list_(_arrow(kind.item_type, name))
        case inspect.UnionType():  # with None
            return _arrow(next(each for each in kind.types if not isinstance(each, inspect.NoneType)), name)
        case inspect.IntType():
            return {"step": pa.int64(), "loss_mask": pa.int8(), "sampled": pa.int8()}.get(name, pa.int32())
        case _:
            plain: dict[type, Any] = {inspect.FloatType: pa.float64(), inspect.BoolType: pa.bool_()}
            return plain.get(type(kind), pa.string())
