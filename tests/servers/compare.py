"""The episodes of a journal and those of a server's log: the same calls, answers and rewards, in the same order."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from orl_core.messages import ToolCall, text_of
from orl_rollout.episodes.journal import read_journal

if TYPE_CHECKING:
    from pathlib import Path

# One answered call: name, arguments, text, reward, end.
Call = tuple[str, str, str, float | None, bool]


class Episodes(Struct, frozen=True):
    """Episodes as tuples of their answered calls. `failed` are calls that the environment's own code broke off."""

    calls: tuple[tuple[Call, ...], ...]
    failed: int = 0
    opened: int = 0
    closed: int = 0

    @property
    def count(self) -> int:
        """Return the number of answered calls."""
        return sum(map(len, self.calls))

    @property
    def reward(self) -> float:
        """Return the sum of all that was paid."""
        return sum(call[3] or 0.0 for episode in self.calls for call in episode)

    def differences(self, other: Episodes) -> int:
        """Return how many episodes with calls only one of the two has."""
        mine, theirs = (Counter(filter(None, one.calls)) for one in (self, other))
        return ((mine - theirs) + (theirs - mine)).total()


def episodes_of_server(log: Path, start: int = 0) -> Episodes:
    """Read what the server logged after the byte `start`."""
    with log.open("rb") as lines:
        lines.seek(start)
        entries = [json.loads(line) for line in lines]
    sessions: dict[str, list[Call]] = {}
    failed = 0
    for entry in entries:
        if not entry["path"].endswith("/call"):
            continue
        asked, answer = json.loads(entry["request"]), _answer(entry["answer"])
        if answer is None:
            failed += 1
        elif answer["ok"]:
            sessions.setdefault(entry["session"], []).append(_call(asked, answer["output"]))
    paths = Counter(entry["path"] for entry in entries if entry["status"] == 200)
    return Episodes(
        calls=tuple(map(tuple, sessions.values())),
        failed=failed,
        opened=paths["/create"],
        closed=paths["/delete"],
    )


def _answer(said: str) -> Any:
    """Return the answer in a stream of events, or None where the stream reports an error."""
    event, chunks = "", []
    for line in said.replace("\r\n", "\n").split("\n"):
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data" and event in {"chunk", "end"}:
            chunks.append(value)
        elif name == "data" and event == "error":
            return None
    return json.loads("".join(chunks)) if chunks else None


def _call(asked: dict[str, Any], output: dict[str, Any]) -> Call:
    text = "\n".join(block.get("text", "") for block in output["blocks"])
    arguments = json.dumps(asked.get("input") or {}, sort_keys=True)
    return asked["name"], arguments, text, output.get("reward"), bool(output.get("finished"))


def episodes_of_journal(folder: Path) -> Episodes:
    """Read the journal in `folder`."""
    episodes: list[tuple[Call, ...]] = []
    failed = 0
    for entry in read_journal(folder):
        failed += bool(entry.trajectory.error)
        made = [
            (call, result)
            for turn in entry.trajectory.turns
            for call, result in zip(turn.action.calls, turn.results, strict=False)
            if isinstance(call, ToolCall) and not result.failure
        ]
        episodes.append(
            tuple(
                (
                    call.name,
                    json.dumps(call.arguments, sort_keys=True),
                    text_of(result.content),
                    result.reward,
                    result.finished,
                )
                for call, result in made
            )
        )
    return Episodes(calls=tuple(episodes), failed=failed, opened=len(episodes), closed=len(episodes))
