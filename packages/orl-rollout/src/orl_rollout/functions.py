"""Functions that the user names as `module:function`: found as any import is, and then in the working folder."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any

from orl_core.errors import ConfigError, boundary


@contextmanager
def loading(key: str, name: str) -> Generator[Any]:
    """Yield the object `name` that `key` of the configuration names. The block checks it.

    Raises:
        ConfigError: module or function cannot be loaded, or the block refuses it; names both.
    """
    find_modules_in(str(Path.cwd()))
    module, _, attribute = name.partition(":")
    what = f"`{key}`: loading `{attribute}` from module `{module}`"
    with boundary(ConfigError, what):
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as missing:
            where = f"no module `{missing.name}` in this folder or in {sys.prefix}"
            raise ConfigError(f"{what}: {where}. Correct the name, or install it there") from missing
        yield reduce(getattr, attribute.split("."), loaded)


def find_modules_in(folder: str) -> None:
    """Let modules in `folder` be imported, after all others: an installed module of the same name comes first."""
    if folder not in sys.path:
        sys.path.append(folder)
