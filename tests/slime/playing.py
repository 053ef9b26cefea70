"""A case is played: the scripted model behind an SGLang stand-in, on a thread and loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from orl_cluster.hooks.worker import aclose
from orl_core.errors import ConfigError
from orl_rollout.loop import loop
from orl_rollout.runtime import runtime
from orl_testing import Fault, SglangServer

from tests.slime import episode
from tests.slime.cases import Case, check


@contextmanager
def engine(checkpoint: Path, faults: Sequence[Fault] = (), *, thinks: bool = False) -> Iterator[SglangServer]:
    """The SGLang stand-in on a thread and loop of its own, as slime's loop is its own."""
    own = asyncio.new_event_loop()
    thread = threading.Thread(target=own.run_forever)
    thread.start()
    server = SglangServer(
        episode.player(checkpoint, thinks=thinks),
        faults=list(faults),
        context_tokens=4000,
        decode=episode.tokenizer_in(checkpoint).decode,
    )
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), own).result(10)
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), own).result(10)
        own.call_soon_threadsafe(own.stop)
        thread.join(10)
        own.close()


class Hosted:
    """The trainer of a test and its engine: the real rollout code, or a miniature of it, in the test's folder."""

    def __init__(self, environment: str, checkpoint: Path, folder: Path) -> None:
        self.environment, self.checkpoint, self.folder = environment, checkpoint, folder

    @contextmanager
    def __call__(
        self,
        hosting: Callable[..., AbstractContextManager[Any]],
        faults: Sequence[Fault] = (),
        *,
        thinks: bool = False,
        config: dict[str, Any] | None = None,
        **flags: Any,
    ) -> Iterator[tuple[Any, SglangServer]]:
        """Start an engine with `faults`, and `hosting` with what `config` changes of the usual settings."""
        settings = episode.settings(self.environment) | (config or {})
        with (
            engine(self.checkpoint, faults, thinks=thinks) as server,
            hosting(server, self.checkpoint, self.folder, settings, **flags) as host,
        ):
            yield host, server


@contextmanager
def hosting(
    server: SglangServer, checkpoint: Path, tmp_path: Path, config: dict[str, Any], **changes: Any
) -> Iterator[Any]:
    from tests.slime.host import Host, arguments

    held_out = changes.pop("eval_prompt_data", None)
    changes.pop("n_samples_per_eval_prompt", None)
    tasks = changes.pop("prompt_data", None) or episode.make_tasks(tmp_path / "tasks.jsonl", 8)
    own = {"orl_folder": str(tmp_path / "run")} | changes
    host = Host(arguments(checkpoint, tasks, server.url, config, **own))
    if held_out:
        host.hold_out(*held_out, apply_chat_template=bool(changes.get("apply_chat_template")))
    try:
        yield host
    finally:
        host.close()


async def close_loop(http_utils: Any) -> None:
    """Close what the trainer's background loop holds, ours and that of its own `http_utils`."""
    # What a rollout that was ended has left behind is over before its clients are closed.
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), 20)
    await aclose()
    if http_utils._http_client is not None:
        await http_utils._http_client.aclose()
    await asyncio.sleep(0)


def configuration(case: Case, environment: str) -> dict[str, Any]:
    """The `orl_config` of a case, a run of its own."""
    config: dict[str, Any] = {**episode.settings(environment), **case.config}
    for one in config["environments"].values():
        one.update(case.environment)
    return config


async def play(case: Case, host: Any, server: SglangServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Play `case` on `host` (slime's own code, or the miniature) and check what came of it."""
    if "bug" in case.name:
        break_once(monkeypatch)
    if case.raises:
        with pytest.raises(ConfigError, match=case.raises):
            await asyncio.to_thread(host.rollout)
        return
    groups = await asyncio.to_thread(host.rollout)
    check(case, groups, host.train_data(groups), list(server.requests))


def break_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first rollout meet a bug of ours; three of them would end the run."""
    whole, bugs = loop.rollout, [RuntimeError("a bug")]

    async def broken(*args: Any, **kwargs: Any) -> Any:
        if bugs:
            raise bugs.pop()
        return await whole(*args, **kwargs)

    monkeypatch.setattr(runtime, "rollout", broken)
