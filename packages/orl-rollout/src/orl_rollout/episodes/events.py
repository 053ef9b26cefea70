"""A rollout as the events that OpenReward takes: its start, its messages, and what is known at its end. Pure.

The form is that of the platform's `POST /v1/rollouts`. All ids derive from the run's and the rollout's names and from
the moment at which it was recorded, so that one rollout sent twice is one, and one played twice is two.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import islice
from pathlib import PurePath
from typing import Any, cast

import msgspec
from orl_core import ParseFailure, RunConfig, ToolCall, ToolSpec, Trajectory, text_of
from orl_core.text import clean, map_strings, plain
from orl_core.tools.format import for_system_prompt

from orl_rollout.episodes.conversation import Said, conversation
from orl_rollout.episodes.journal import Entry


def events_of(entry: Entry, config: RunConfig) -> Iterator[dict[str, Any]]:
    """Yield the events of a rollout: its start, its messages, and before the last of them the facts of its end."""
    name = f"orl:{config.openreward_run_name}:{entry.key}:{entry.time!r}"
    rollout_id = str(uuid.uuid5(uuid.NAMESPACE_URL, clean(name)))
    stamp = {"timestamp": int(entry.time * 1000)}
    yield _wire({"eventType": "rollout", "eventId": rollout_id, **_start(entry, config), **stamp})
    known = {
        "eventType": "rollout_update",
        "eventId": rollout_id,
        "rollout_info": _rollout_info(entry, config),
        **stamp,
    }
    messages = list(_messages(entry, config))
    if not messages:  # its session did not open
        yield _wire(known)
    for index, message in enumerate(messages):
        last = index == len(messages) - 1
        if last:
            yield _wire(known)
        event = {
            "eventType": "message",
            "eventId": str(uuid.uuid5(uuid.UUID(rollout_id), str(index))),
            "index": index,
            "rolloutEventId": rollout_id,
            "isFinished": last,
        }
        metadata = {**message.pop("metadata", {}), **(_summary(entry) if last else {})}
        yield _wire({**event, **message, "metadata": metadata, **stamp})


def _start(entry: Entry, config: RunConfig) -> dict[str, Any]:
    job, trainer = entry.trajectory.job, config.trainer
    run = {
        "model_name": trainer.model,
        "run_type": "eval" if job.evaluation else "train",
        "training_stage": None if job.evaluation else "rl",
        "checkpoint": trainer.load,
        "rl_algorithm": trainer.advantage_estimator,
        "batch_size": trainer.rollout_batch_size,
        "lr": trainer.lr,
        "framework": "orl",
        "framework_version": version("orl-rollout"),
    }
    return {
        "runName": config.openreward_run_name,
        "rolloutName": entry.key,
        "environment": job.task.env_name,
        "variant": job.task.environment_name or None,
        "split": job.task.split,
        "task_spec": job.task.task_spec,
        "run_info": run if trainer.model else None,
    }


def _wire(event: dict[str, Any]) -> dict[str, Any]:
    """Remove from an event what the platform refuses: nulls, NUL characters, lone surrogates."""
    return map_strings(_without_none(plain(event)), _text)


def _text(text: str) -> str:
    return clean(text.replace("\0", ""))


def _without_none(tree: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for key, value in tree.items()
        if value is not None
    }


def _summary(entry: Entry) -> dict[str, Any]:
    reason, detail = entry.trajectory.stop_reason, entry.trajectory.stop_detail
    return {
        "reward": entry.reward,
        "success": entry.success,
        "stop_reason": reason.value,
        "stop_detail": detail and detail.value,
    }


def _rollout_info(entry: Entry, config: RunConfig) -> dict[str, Any]:
    job, agent = entry.trajectory.job, config.agent_config
    return {
        "task_index": job.task.index,
        "current_step": entry.step,
        "temperature": job.sampling.get("temperature"),
        "top_p": job.sampling.get("top_p"),
        "top_k": job.sampling.get("top_k"),
        "max_tokens": job.turn_tokens,
        "duration_ms": int(entry.trajectory.seconds * 1000),
        "harness": (agent.function or PurePath(agent.name).name) if agent else "orl",
    }


def _messages(entry: Entry, config: RunConfig) -> Iterator[dict[str, Any]]:
    """Yield the system prompt, the opening as the environment said it, then the model's actions and their answers."""
    opening = entry.trajectory.messages
    instructions = text_of(opening[0].content) if opening and opening[0].role == "system" else ""
    system = _system_prompt(entry.trajectory.tools, instructions, config.system_prompt_template)
    if opening and system:  # else its session did not open
        yield {"type": "system_message", "content": system}
    for one in islice(conversation(entry.trajectory), bool(instructions), None):
        yield from _message(one, entry.trajectory)


def _system_prompt(tools: Sequence[ToolSpec], instructions: str, template: str | None) -> str:
    """Return what `said`, the environment's system message, and the tools tell the model.

    With a `template` it is the prompt that the model reads. A chat template has its own form for the tools; here they
    are listed after the message, one JSON object a line.
    """
    listed = for_system_prompt(tools)
    parts = (instructions, listed) if template is None else (template.format(tools=listed), instructions)
    return "\n\n".join(part for part in parts if part)


def _message(one: Said, trajectory: Trajectory) -> Iterator[dict[str, Any]]:
    """Yield a message in the platform's form. An agent's copies of actions and results are left out."""
    message, content = one.message, text_of(one.message.content)
    if one.result:
        facts = {"reward": one.result.reward, "metadata": one.result.metadata}
        yield {"type": "tool_result", "content": content, "callId": f"{one.turn}.{one.place}", **facts}
    elif one.action or (one.turn is None and message.role == "assistant"):
        text, calls = (one.action.text, one.action.calls) if one.action else (content, message.calls)
        if message.reasoning:
            yield {"type": "reasoning", "content": message.reasoning}
        if text.strip():
            yield {"type": "assistant_message", "content": text}
        for index, call in enumerate(calls):
            yield _call(None if one.turn is None else f"{one.turn}.{index}", call)
    elif message.role in ("system", "user"):
        yield {"type": f"{message.role}_message", "content": content}
    elif one.turn is None:
        yield {"type": "tool_result", "content": content}


def _call(call_id: str | None, call: ToolCall | ParseFailure) -> dict[str, Any]:
    """Return a call as the platform takes it; one that could not be parsed is what the model wrote instead."""
    if isinstance(call, ParseFailure):
        return {"type": "assistant_message", "content": call.text or call.message}
    arguments = msgspec.json.encode(map_strings(plain(call.arguments), _text)).decode()
    return {"type": "tool_call", "name": call.name, "content": arguments, "callId": call_id}
