"""The wire format of Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,key:1,…}<tool_call|>`.

It must not know tools, schemas or tokens. Strings are between two `<|"|>`, which is a token of its own, so that they
need no escapes. Keys are bare, other values as in JSON: the arguments are rewritten as JSON, and `strict_json` reads
them. What it decides if the format is silent:

- A key may be between `<|"|>` too, and null may be written `None`, as earlier templates write it.
- A call is complete with its closing brace, closed or not. A delimiter inside a string is part of the string. A broken
  call ends at the next `<|tool_call>` or `<tool_call|>`. It is UNCLOSED if the text ends inside it.
- Reasoning is between `<|channel>`, with the channel's name `thought`, and `<channel|>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from msgspec import structs

from orl_core.messages import FailureKind, ToolCall
from orl_core.tools.format import Specs, Spelling, writer
from orl_core.tools.scan import Mark, Marked, Scan
from orl_core.tools.strict_json import NotJson, read_rewritten
from orl_core.tools.wire_format import WireFormat

_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_THINKING = ("<|channel>", "<channel|>")
_EXAMPLE = f"call:a_tool{{a_name:{_QUOTE}its value{_QUOTE}}}"
_NAME = re.compile(r"\s*+call:\s*+([^\s{}<,:]++(?:[:][^\s{}<,:]++)*+)?+\s*+(?=\{)")
_NAME_CUT = re.compile(r"\s*+(?:c(?:a(?:l(?:l(?::[^{}<,]*+)?)?)?)?)?")
_TOKEN = re.compile(r"\s*+([{}\[\],:]|[^\s{}\[\],:<][^{}\[\],:<\n]*+)\s*+")
_SCALAR = re.compile(r"-?[0-9][0-9.eE+-]*+|true|false|null|None")
_BARE = re.compile(r"[\w-]+")  # a key that needs no quotes
_CHANNEL = re.compile(r"thought\s*+")


def _prepared(marked: Marked) -> Marked:
    """Add the name of a channel to the mark that opens it."""

    def named(mark: Mark) -> Mark:
        match = _CHANNEL.match(marked.text, mark.end) if mark.delimiter == _THINKING[0] else None
        return structs.replace(mark, end=match.end()) if match else mark

    return Marked(text=marked.text, marks=tuple(map(named, marked.marks)))


def _call(scan: Scan) -> None:
    start = scan.at
    match = _NAME.match(scan.text, start)
    name = (match[1] or "") if match else ""
    try:
        if match is None:
            cut = _NAME_CUT.fullmatch(scan.text, start) is not None
            raise NotJson("it does not begin with call:a_tool{", cut=cut)
        arguments, end = _arguments(scan, match.end())
    except NotJson as exc:
        mark = scan.go(start, (_OPEN, _CLOSE))
        kind = FailureKind.UNCLOSED if exc.cut else FailureKind.MALFORMED
        scan.fail(kind, f"the tool call cannot be read: {exc}; write {_EXAMPLE}", start, name=name)
    else:
        mark = scan.go(end, (_OPEN, _CLOSE))
        if scan.text[end : scan.at].strip():
            closed = mark is not None and mark.delimiter == _CLOSE
            kind = FailureKind.MALFORMED if closed else FailureKind.UNCLOSED
            scan.fail(kind, f"unexpected text between the arguments of `{name}` and {_CLOSE}", start, name=name)
        elif name:
            scan.calls.append(ToolCall(name=name, arguments=arguments))
        else:
            scan.fail(FailureKind.MISSING_NAME, f"the tool call has no name; write {_EXAMPLE}", start)
    if mark is not None and mark.delimiter == _CLOSE:
        scan.pass_mark()


def _arguments(scan: Scan, place: int) -> tuple[dict[str, Any], int]:
    """Return the object at `place`, and the index after it."""
    text, pieces, depth = scan.text, list[str](), 0
    quotes = iter([mark for mark in scan.marks[scan.index :] if mark.delimiter == _QUOTE])
    quote = next(quotes, None)
    while depth or not pieces:
        while quote is not None and quote.start < place:
            quote = next(quotes, None)
        if quote is not None and not text[place : quote.start].strip():
            end = next(quotes, None)
            if end is None:
                raise NotJson(f"a string does not end with {_QUOTE}", cut=True)
            pieces.append(json.dumps(text[quote.end : end.start]))
            place = end.end
            continue
        match = _TOKEN.match(text, place)
        if match is None:
            raise NotJson(
                f"a key or a value is missing; strings are between two {_QUOTE}", cut=not text[place:].strip()
            )
        place, piece = match.end(), match[1].rstrip()
        depth += (piece in "{[") - (piece in "}]")
        if piece not in "{}[],:":
            piece = _word(piece, is_key=text.startswith(":", place), cut=place == len(text))
        pieces.append(piece)
    return read_rewritten("".join(pieces)), place


def _word(word: str, *, is_key: bool, cut: bool) -> str:
    """Return a key or a value that is no string as JSON."""
    if not is_key and not _SCALAR.fullmatch(word):
        raise NotJson(f"{word[:80]!r} is not a value; strings are between two {_QUOTE}", cut=cut)
    return json.dumps(word) if is_key else word.replace("None", "null")


def _spelled(value: Any, *, declared: bool = False) -> str:
    """Return a value as the template prints it. In a declaration keys are quoted, and in the order of `dictsort`."""
    match value:
        case str():
            return f"{_QUOTE}{value}{_QUOTE}"
        case dict():
            members = cast("dict[str, Any]", value)
            pairs = _sorted(members) if declared else members.items()
            return _braces(
                (key if _BARE.fullmatch(key) and not declared else _spelled(key), _spelled(member, declared=declared))
                for key, member in pairs
            )
        case list() | tuple():
            return f"[{','.join(_spelled(one, declared=declared) for one in cast('list[Any]', value))}]"
        case _:
            return json.dumps(value)


def _braces(members: Iterable[tuple[str, str]]) -> str:
    return f"{{{','.join(f'{name}:{written}' for name, written in members)}}}"


def _sorted(members: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return members in the order of Jinja's `dictsort`."""
    return sorted(members.items(), key=lambda member: member[0].lower())


def _show(specs: Specs) -> str:
    """Return the declarations of the tools."""
    return "".join(f"<|tool>{_declaration(spec['function'])}<tool|>" for spec in specs)


def _declaration(function: Mapping[str, Any]) -> str:
    members = [("description", _spelled(function["description"]))]
    if parameters := function["parameters"]:
        members.append(("parameters", _braces(_schema(parameters))))
    return f"declaration:{function['name']}{_braces(members)}"


def _schema(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the members of the schema of all parameters."""
    if spec.get("properties"):
        yield "properties", _properties(spec["properties"])
    if spec.get("required"):
        yield "required", _spelled(spec["required"])
    if spec.get("type"):
        yield "type", _spelled(str(spec["type"]).upper())


def _properties(properties: Mapping[str, Any]) -> str:
    return _braces((name, _braces(_property(spec))) for name, spec in _sorted(properties))


def _property(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the members of the schema of one parameter."""
    kind = str(spec.get("type", "")).upper()
    if spec.get("description"):
        yield "description", _spelled(spec["description"])
    if kind == "STRING" and spec.get("enum"):
        yield "enum", _spelled(spec["enum"])
    if kind == "ARRAY" and isinstance(spec.get("items"), dict) and spec["items"]:
        yield "items", _braces((name, _item(name, of)) for name, of in _sorted(spec["items"]) if of is not None)
    if kind == "OBJECT":
        yield "properties", _properties(spec.get("properties", {}))
        if spec.get("required"):
            yield "required", _spelled(spec["required"])
    yield "type", _spelled(kind)


def _item(name: str, value: Any) -> str:
    """Return a member of the schema of an array's elements."""
    if name == "properties":
        return _properties(value)
    if name == "type":
        value = value.upper() if isinstance(value, str) else [kind.upper() for kind in value]
    return _spelled(value, declared=True)


GEMMA4 = WireFormat(
    delimiters=(_OPEN, _CLOSE, _QUOTE, *_THINKING),
    spelling=Spelling(
        write=writer(f"{_OPEN}call:%(name)s%(json)s{_CLOSE}", spell=_spelled),
        show=_show,
        families=("gemma-4",),
        examples=((_OPEN,),),
    ),
    thinking=_THINKING,
    readers={_OPEN: _call},
    prepared=_prepared,
    closings={_CLOSE: _OPEN},
)
