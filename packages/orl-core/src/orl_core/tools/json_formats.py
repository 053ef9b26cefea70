"""The formats whose calls are JSON between delimiters, or JSON alone; `json_calls` reads them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from msgspec import structs

from orl_core.names import ToolFormat
from orl_core.tools.format import OBJECT, Spelling, array, paragraphs, writer
from orl_core.tools.json_calls import CallShape, read_array, read_calls, read_name, read_named, read_object, read_one
from orl_core.tools.scan import Mark, Marked, Scan
from orl_core.tools.wire_format import THINKING, WireFormat, frame

_LLAMA_TAG = "<|python_tag|>"
_LLAMA_TEXT = ("<|python_start|>", "<|python_end|>")
_LLAMA_OBJECT = "{"  # the delimiter of the marks without width that `_llama_prepared` adds
_LLAMA = CallShape(
    example='{"name": "a_tool", "parameters": {}}', keys=("parameters", "arguments"), stops=(_LLAMA_TAG,)
)
_LLAMA_CALL = re.compile(r'\s*+;?+\s*+(?=\{\s*+"(?:name|type)"\s*+:)')
_LLAMA_AFTER_TEXT = re.compile(r'\{\s*+"name"\s*+:\s*+"(?:[^"\\]++|\\.)++"\s*+,\s*+"parameters"\s*+:', re.DOTALL)
_LLAMA_NEXT = re.compile(rf"\s*+;\s*+(?=\{{)|{_LLAMA_CALL.pattern}")


def _llama_prepared(marked: Marked) -> Marked:
    """Mark the objects that are calls behind text."""
    places = [match.start() for match in _LLAMA_AFTER_TEXT.finditer(marked.text)]
    objects = [Mark(start=place, end=place, delimiter=_LLAMA_OBJECT) for place in places]
    return Marked(text=marked.text, marks=tuple(sorted((*marked.marks, *objects), key=lambda mark: mark.start)))


def _read_llama(scan: Scan) -> None:
    """Read objects until something else follows."""
    while read_object(scan, _LLAMA) and (following := _LLAMA_NEXT.match(scan.text, scan.at)):
        scan.jump(following.end())


_KIMI_NUMBER = re.compile(r":[0-9]+\Z")
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"


def _read_kimi(scan: Scan, shape: CallShape) -> None:
    start = scan.at
    written = read_name(scan, _KIMI_ARGUMENTS, shape)
    if written is not None:
        read_named(scan, shape, _KIMI_NUMBER.sub("", written.removeprefix("functions.")), start)
        scan.give_id(written)


def _format(
    shape: CallShape,
    read: Callable[[Scan, CallShape], object],
    spelling: Spelling,
    *,
    frames: Sequence[str] = (),
    text_frames: Collection[str] = (),
    thinking: tuple[str, str] = THINKING,
) -> WireFormat:
    """Return a format whose calls `read` reads behind an opening. `frames` are around calls, the last one closes."""
    inside = {*shape.closing, *frames, _KIMI_ARGUMENTS}
    opens = [stop for stop in shape.stops if stop not in inside]
    return WireFormat(
        delimiters=tuple(dict.fromkeys((*shape.stops, *frames, *text_frames, *thinking))),
        spelling=spelling,
        thinking=thinking,
        text_frames=text_frames,
        readers={**dict.fromkeys(opens, lambda scan: read(scan, shape)), **dict.fromkeys(frames, frame)},
        closings=dict.fromkeys((*shape.closing, *frames[-1:]), opens[-1]),
    )


_ARRAY = '[{"name": "a_tool", "arguments": {}}]'
_XLAM = CallShape(example=_ARRAY, keys=("arguments", "parameters"))
_XLAM_CALLS = re.compile(r'\s*+\[\s*+\{\s*+"(?:name|arguments)"\s*+:')
_COHERE_TEXT = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
FORMATS: Mapping[ToolFormat, WireFormat] = {
    # Qwen2.5, Qwen3, Hermes: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. A block is a call when its object
    # is complete, closed or not: a stop token may come in place of `</tool_call>`.
    "hermes": _format(
        CallShape(stops=("<tool_call>", "</tool_call>"), closing=("</tool_call>",)),
        read_one,
        Spelling(
            write=writer(f"<tool_call>\n{OBJECT}\n</tool_call>"),
            families=("qwen2.5", "qwen3", "qwen3-vl", "qwen3-next", "granite-4", "granite-4.0", "smollm3"),
            examples=(("<tool_call>", '"name"'),),
        ),
    ),
    # Granite 3: `<|tool_call|>[…]`; Nemotron Nano v2: `<TOOLCALL>[…]</TOOLCALL>`. What follows the array is text.
    "opened_array": structs.replace(
        _format(
            CallShape(example=_ARRAY, stops=("<|tool_call|>", "<TOOLCALL>", "</TOOLCALL>")),
            read_calls,
            Spelling(
                write=writer(f"<TOOLCALL>[{OBJECT}]</TOOLCALL>"),
                show=array("<AVAILABLE_TOOLS>", "</AVAILABLE_TOOLS>", bare=True),
                families=("granite-3", "granite-3.3", "nemotron-nano-v2"),
                examples=(("<TOOLCALL>",), ("<|tool_call|>",)),
            ),
            frames=["</TOOLCALL>"],
        ),
        call_ends_reasoning=False,
    ),
    # Command R7B, Command A, Cohere 2 MoE: `<|START_ACTION|>[…]<|END_ACTION|>`.
    "cohere": _format(
        CallShape(
            example='[{"tool_name": "a_tool", "parameters": {}}]',
            named="tool_name",
            numbered="tool_call_id",
            keys=("parameters",),
            stops=("<|START_ACTION|>", "<|END_ACTION|>"),
        ),
        read_calls,
        Spelling(
            write=writer('<|START_ACTION|>[{"tool_name": %(name_json)s, "parameters": %(json)s}]<|END_ACTION|>'),
            show=array("```json\n", "\n```", bare=True),
            families=("command-r7b", "command-a"),
            examples=(("<|START_ACTION|>",),),
        ),
        frames=["<|END_ACTION|>"],
        text_frames=_COHERE_TEXT,
        thinking=("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    # xLAM: a bare array whose first value is an object that begins with `name` or `arguments`. Any other is text.
    "json_array": WireFormat(
        delimiters=THINKING,
        spelling=Spelling(write=writer(f"[{OBJECT}]"), show=paragraphs, families=("xlam",)),
        bare=(_XLAM_CALLS, partial(read_array, shape=_XLAM)),
    ),
    # Llama 3.1 to 3.3 and 4: objects, joined by `;` or white space, behind `<|python_tag|>`, or at the start of the
    # text and after reasoning, or behind text if they begin with `name` and `parameters`. Any other object is text.
    # Llama 4's own template has the text between two delimiters.
    "llama3": WireFormat(
        delimiters=(_LLAMA_TAG, *_LLAMA_TEXT, *THINKING),
        spelling=Spelling(
            write=writer('{"name": %(name_json)s, "parameters": %(json)s}'),
            show=paragraphs,
            families=("llama-3.1", "llama-3.2", "llama-3.3", "llama-4"),
        ),
        text_frames=_LLAMA_TEXT,
        readers={_LLAMA_TAG: _read_llama, _LLAMA_OBJECT: _read_llama},
        bare=(_LLAMA_CALL, _read_llama),
        prepared=_llama_prepared,
        call_ends_reasoning=False,
    ),
    # `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`. The number and `functions.`
    # may be missing.
    "kimi_k2": _format(
        CallShape(
            example="functions.a_tool:0, then its arguments as one JSON object",
            stops=("<|tool_call_begin|>", _KIMI_ARGUMENTS, "<|tool_call_end|>", "<|tool_calls_section_end|>"),
            closing=("<|tool_call_end|>",),
        ),
        _read_kimi,
        Spelling(
            write=writer(
                "<|tool_calls_section_begin|><|tool_call_begin|>functions.%(name)s:0<|tool_call_argument_begin|>"
                "%(json)s<|tool_call_end|><|tool_calls_section_end|>"
            ),
            show=array("", ""),
            families=("kimi-k2.5", "kimi-k2-thinking"),
            examples=(("<|tool_call_begin|>",),),
        ),
        frames=["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    ),
}
