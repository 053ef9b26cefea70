"""Replies of every kind that the gateway sends."""

from typing import Any

from orl_core.messages import ToolCall
from orl_gateway.dialects.exchange import Reply, SentCall

COUNTS: dict[str, Any] = {
    "prompt_tokens": 20,
    "cached_tokens": 12,
    "sampled_tokens": 7,
    "reasoning_tokens": 3,
    "created": 1_700_000_000,
}
CALLS = (
    SentCall(id="call_000001_0", call=ToolCall(name="look", arguments={"at": "é", "far": 1.5})),
    SentCall(id="call_000001_1", call=ToolCall(name="wait")),
)
REPLIES = {
    "text": Reply(name="000001", text="Well.\n\nNo.", **COUNTS),
    "calls": Reply(name="000001", text="I look.", reasoning="Two\ndoors.", calls=CALLS, ending="calls", **COUNTS),
    "calls_alone": Reply(name="000001", calls=CALLS[:1], ending="calls", **COUNTS),
    "cut": Reply(name="000001", text="Wel", ending="length", **COUNTS),
    "stopped": Reply(name="000001", text="Well. ", ending="stop_sequence", stop_sequence="END", **COUNTS),
    "empty": Reply(name="000001", **COUNTS),
}
