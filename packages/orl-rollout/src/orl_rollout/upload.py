"""Uploads of finished rollouts to OpenReward, in the background, on the platform's wire form.

What is uploaded are journal entries, so nothing is lost that could not be uploaded again: the ids of all events derive
from the run's and the rollout's names, and a repeat changes nothing. One thread of its own, on no event loop, sends
them in order; a full queue or a platform that stays away costs entries, never time or a failure of a rollout. An entry
that echoes a secret is not uploaded (law L6).
"""

from __future__ import annotations

import http.client
import logging
import queue
import threading
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from orl_core.errors import ConfigError
from orl_core.messages import ParseFailure, ToolCall, text_of
from orl_core.trajectory import StopReason, Turn

from orl_rollout.openreward.sdk import api_url
from orl_rollout.secrets import Scrubber, api_key
from orl_rollout.text import clean, map_strings, plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orl_core.config import RunConfig

    from orl_rollout.journal import Entry

logger = logging.getLogger(__name__)

WAITING = 1_000  # entries in the queue
BATCH = 128  # events in one request
TRIES = 5  # of one request, 0.5 s after the first and doubling
REQUEST_SECONDS = 10.0


def uploads(config: RunConfig, env_name: str) -> bool:
    """Whether rollouts of this environment are uploaded: as `rollout.upload` says, else with a key, from the platform.

    Raises:
        ConfigError: `rollout.upload` is set and there is no key.
    """
    if config.rollout.upload and not api_key():
        raise ConfigError("`rollout.upload` is on: set OPENREWARD_API_KEY")
    if config.rollout.upload is not None:
        return config.rollout.upload
    return bool(api_key()) and config.environments[env_name].base_url is None


class Counts(Struct, kw_only=True):
    """What became of the entries: `refused` for their secrets, `dropped` for a full queue, `failed` on the way."""

    sent: int = 0
    refused: int = 0
    dropped: int = 0
    failed: int = 0


class Uploader:
    """Sends journal entries of one run. One for each process; any thread may submit."""

    def __init__(self, config: RunConfig) -> None:
        self.counts = Counts()
        self._config = config
        self._scrubber = Scrubber.of(config)
        self._queue: queue.Queue[Entry | None] = queue.Queue(WAITING)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="orl-uploads", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def submit(self, entry: Entry) -> None:
        """Queue an entry, if its environment's rollouts are uploaded. Never waits, never raises."""
        if not uploads(self._config, entry.trajectory.job.task.env_name):
            return
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self.counts.dropped += 1

    def close(self, seconds: float = 10.0) -> None:
        """Send what is queued, for at most `seconds`; what is left stays in the journal."""
        ends = time.monotonic() + seconds
        with suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        self._thread.join(max(0.0, ends - time.monotonic()))
        self._stopping.set()
        if self._thread.is_alive():
            logger.warning("uploads: %d rollouts are left in the journal", self._queue.qsize())

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None and not self._stopping.is_set():
            events = list(events_of(entry, self._config))
            if entry.trajectory.leaked or self._scrubber.find_in(events):
                self.counts.refused += 1
            elif self._send(events[:1]) and all(
                self._send(events[start : start + BATCH]) for start in range(1, len(events), BATCH)
            ):
                self.counts.sent += 1
            else:
                self.counts.failed += 1

    def _send(self, events: Sequence[dict[str, Any]]) -> bool:
        """Post events until a 2xx; False where the platform refuses them or stays away."""
        body = msgspec.json.encode({"events": events})
        status = "no answer"
        for number in range(TRIES):
            if number and self._stopping.wait(0.5 * 2 ** (number - 1)):
                return False
            try:
                answer = _post(body)
            except (OSError, http.client.HTTPException) as exc:
                status = f"{type(exc).__name__}: {exc}"
                continue
            if 200 <= answer < 300:
                return True
            status = f"HTTP {answer}"
            if answer < 500 and answer not in {408, 429}:
                break
        logger.warning("uploads: %d events were not taken: %s", len(events), status)
        return False


def _post(body: bytes) -> int:
    url = urlsplit(api_url())
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.netloc, timeout=REQUEST_SECONDS)
    try:
        headers = {"x-api-key": api_key(), "Content-Type": "application/json"}
        connection.request("POST", f"{url.path.rstrip('/')}/v1/rollouts", body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def events_of(entry: Entry, config: RunConfig) -> Iterator[dict[str, Any]]:
    """The events of one rollout: its start, its messages, and before the last of them what is known at its end."""
    rollout_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"orl:{config.openreward_run_name}:{entry.key}"))
    stamp = {"timestamp": int(entry.time * 1000)}
    yield _wire({"eventType": "rollout", "eventId": rollout_id, **_start(entry, config), **stamp})
    messages = list(_messages(entry))
    for index, message in enumerate(messages):
        last = index == len(messages) - 1
        if last:
            info = _rollout_info(entry)
            yield _wire({"eventType": "rollout_update", "eventId": rollout_id, "rollout_info": info, **stamp})
        event = {
            "eventType": "message",
            "eventId": str(uuid.uuid5(uuid.UUID(rollout_id), str(index))),
            "index": index,
            "rolloutEventId": rollout_id,
            "isFinished": last,
            "metadata": _summary(entry) if last else {},
        }
        yield _wire({**event, **message, **stamp})


def _start(entry: Entry, config: RunConfig) -> dict[str, Any]:
    job, trainer = entry.trajectory.job, config.trainer
    kind = "eval" if job.evaluation else "train"
    run_info = {"model_name": trainer.model, "run_type": kind, "lr": trainer.lr, "framework": "orl"}
    return {
        "runName": config.openreward_run_name,
        "rolloutName": entry.key,
        "environment": job.task.env_name,
        "variant": job.task.environment_name or None,
        "split": job.task.split,
        "task_spec": job.task.task_spec,
        "run_info": run_info if trainer.model else None,
    }


def _wire(event: dict[str, Any]) -> dict[str, Any]:
    """An event without nulls, NUL characters and lone surrogates, none of which the platform takes."""
    return map_strings(_without_none(plain(event)), lambda text: clean(text.replace("\0", "")))


def _without_none(tree: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def _summary(entry: Entry) -> dict[str, Any]:
    reason = entry.trajectory.stop_reason
    finished = reason is StopReason.FINISHED
    return {"reward": entry.reward, "success": entry.success, "stop_reason": reason.value, "finished": finished}


def _rollout_info(entry: Entry) -> dict[str, Any]:
    job = entry.trajectory.job
    return {
        "task_index": job.task.index,
        "current_step": entry.step,
        "temperature": job.sampling.get("temperature"),
        "top_p": job.sampling.get("top_p"),
        "max_tokens": job.limits.turn_tokens,
        "duration_ms": int(entry.trajectory.seconds * 1000),
        "harness": "orl",
    }


def _messages(entry: Entry) -> Iterator[dict[str, Any]]:
    for number, turn in enumerate(entry.trajectory.turns):
        yield from _turn(number, turn)


def _turn(number: int, turn: Turn) -> Iterator[dict[str, Any]]:
    action = turn.action
    if action.reasoning:
        yield {"type": "reasoning", "content": action.reasoning}
    if action.text.strip():
        yield {"type": "assistant_message", "content": action.text}
    for index, call in enumerate(action.calls):
        yield _call(f"{number}.{index}", call)
    for index, result in enumerate(turn.results):
        content = text_of(result.content)
        yield {"type": "tool_result", "content": content, "callId": f"{number}.{index}", "reward": result.reward}


def _call(call_id: str, call: ToolCall | ParseFailure) -> dict[str, Any]:
    """A call as the platform takes it; one that could not be parsed is what the model wrote instead."""
    if isinstance(call, ParseFailure):
        return {"type": "assistant_message", "content": call.text or call.message}
    arguments = msgspec.json.encode(plain(call.arguments)).decode()
    return {"type": "tool_call", "name": call.name, "content": arguments, "callId": call_id}
