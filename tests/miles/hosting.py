"""A case is played inside miles: the scripted model behind an SGLang stand-in, and a process's worth of miles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orl_testing import SglangServer

from tests.miles.host import Host, arguments
from tests.slime import episode

SECONDS = 60  # that a hang is waited for


@contextmanager
def hosting(
    server: SglangServer, checkpoint: Path, tmp_path: Path, config: dict[str, Any], **flags: Any
) -> Iterator[Host]:
    """A host that was started with `flags`; `config` is the `orl_config`, and `tmp_path / "run"` the run's folder."""
    tasks = flags.pop("prompt_data", None) or episode.make_tasks(tmp_path / "tasks.jsonl", 8)
    settings = {"orl_config": config, "orl_folder": str(tmp_path / "run")}
    host = Host(arguments(checkpoint, tasks, server.url, settings, **flags))
    try:
        yield host
    finally:
        host.close()
