"""Files of chat data: JSON lines, Parquet, and a folder that `datasets.load_dataset` reads with its splits.

Rows are written as they come, so that a journal may be larger than memory. A file gets its name when it is whole.
"""

# pyarrow has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec
from orl_core.errors import ConfigError
from orl_rollout.edge import interrupt

from orl_launcher.export.conversations import ChatRow
from orl_launcher.installation import to_install

FORMATS = ("jsonl", "parquet", "hf")
GROUP_ROWS = 256  # rows that are held until they are written as one group of Parquet
SPLITS = {False: "train", True: "test"}  # of a folder for `datasets`, by `evaluation`
CARD = """\
---
configs:
- config_name: default
  data_files:
{files}---

Episodes of {name} in chat format, written by `orl export`. `train` holds training episodes, `test` held-out ones.
`tools` and the arguments of calls are JSON texts.
"""


class Writer(Protocol):
    """Takes rows, one after another."""

    def add(self, row: ChatRow) -> None:
        """Write one row."""
        ...


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
        with _opened(part, form, name) as writer:
            for row in rows:
                interrupt.check()
                writer.add(row)
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
def _opened(path: Path, form: str, name: str) -> Generator[Writer]:
    with ExitStack() as closing:
        if form == "jsonl":
            yield _Lines(closing, path)
        elif form == "parquet":
            yield _Parquet(closing, path)
        else:
            yield _Folder(closing, path, name)


class _Lines:
    def __init__(self, closing: ExitStack, path: Path) -> None:
        self._file = closing.enter_context(path.open("wb"))

    def add(self, row: ChatRow) -> None:
        self._file.write(msgspec.json.encode(row) + b"\n")


class _Parquet:
    """Writes row groups. The columns are stated, so that they do not depend on what the first rows hold."""

    def __init__(self, closing: ExitStack, path: Path) -> None:
        from pyarrow import parquet

        self._rows: list[dict[str, Any]] = []
        self._writer = closing.enter_context(parquet.ParquetWriter(path, _schema(), compression="zstd"))
        closing.callback(self._flush)

    def add(self, row: ChatRow) -> None:
        self._rows.append(msgspec.to_builtins(row))
        if len(self._rows) >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        if self._rows:
            self._writer.write_table(pyarrow.Table.from_pylist(self._rows, schema=_schema()))
            self._rows.clear()


class _Folder:
    """Writes one Parquet file for each split, and the card that names them."""

    def __init__(self, closing: ExitStack, path: Path, name: str) -> None:
        self._closing, self._path, self._name = closing, path, name
        self._writers: dict[bool, _Parquet] = {}
        (path / "data").mkdir(parents=True)

    def add(self, row: ChatRow) -> None:
        writer = self._writers.get(row.evaluation)
        if writer is None:
            writer = self._writers[row.evaluation] = _Parquet(self._closing, self._path / self._file(row.evaluation))
            held = (evaluation for evaluation in SPLITS if evaluation in self._writers)
            files = "".join(f"  - split: {SPLITS[each]}\n    path: {self._file(each)}\n" for each in held)
            (self._path / "README.md").write_text(CARD.format(files=files, name=self._name), encoding="utf-8")
        writer.add(row)

    def _file(self, evaluation: bool) -> str:
        return f"data/{SPLITS[evaluation]}-00000-of-00001.parquet"


def _schema() -> Any:
    """Return the columns of a ChatRow."""
    import pyarrow as pa

    text, number = pa.string(), pa.float64()
    function = pa.struct([("name", text), ("arguments", text)])
    call = pa.struct([("id", text), ("type", text), ("function", function)])
    message = pa.struct(
        [
            ("role", text),
            ("content", text),
            ("reasoning_content", text),
            ("tool_calls", pa.list_(call)),
            ("tool_call_id", text),
            ("name", text),
        ]
    )
    ids, flags = pa.list_(pa.int32()), pa.list_(pa.int8())
    datum = pa.struct(
        [
            ("prompt_ids", ids),
            ("response_ids", ids),
            ("loss_mask", flags),
            ("sampled", flags),
            ("logprobs", pa.list_(number)),
        ]
    )
    return pa.schema(
        [
            ("messages", pa.list_(message)),
            ("tools", text),
            *((name, text) for name in ("environment", "split", "task", "rollout_id")),
            ("conversation", pa.int32()),
            ("evaluation", pa.bool_()),
            ("step", pa.int64()),
            ("time", number),
            ("reward", number),
            ("success", pa.bool_()),
            ("stop_reason", text),
            ("error", text),
            ("seconds", number),
            ("data", pa.list_(datum)),
        ]
    )
