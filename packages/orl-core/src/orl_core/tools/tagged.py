"""Calls in tags, a value in a tag of its own: Qwen3-Coder, Seed-OSS, MiniMax and DeepSeek V3.2.

A syntax says which tag a mark is. The order of tags is read here, once for all of them:

    open, then calls, then close;    a call: call, then values, then called;    a value: key, text, value end

Values cannot be escaped in these formats, so a value is the text between its two tags, and if another tag of the
format comes before the value's end the call is MALFORMED, never cut silently. The same goes for text between tags, a
parameter twice, and a missing `called` tag. What ends with the text, or where a new block opens, is UNCLOSED; a block's
own closing tag may be missing after its last call. Reasoning tags inside a block are text. After a failure reading goes
on with the next call or block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from orl_core.messages import FailureKind, ToolCall
from orl_core.tools.scan import Mark, Scan
from orl_core.tools.strict_json import NotJson, read_all, read_value, skip_space

Kind = Literal["open", "close", "call", "called", "key", "value end"]


class Tag(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Hold a tag at `text[start:end]`. `name` names tool or parameter; `is_json`: its value is JSON.

    `closes_itself`: it is a call without arguments, and nothing follows that belongs to it.
    """

    kind: Kind
    start: int
    end: int
    name: str = ""
    is_json: bool = False
    closes_itself: bool = False


class TagSyntax(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to write the tags. `tag` reads the tag at a mark; four others spell tags for messages.

    `strips_newline`: the format writes a value on lines of its own, so that one newline at either end is not its.
    `json_body`: all arguments may be one JSON object in place of the first value.
    """

    tag: Callable[[Scan, Mark], Tag | None]
    call: str
    called: str
    key: str
    value_end: str
    strips_newline: bool = False
    json_body: bool = False


def named_tag(kinds: Mapping[str, Kind], name: re.Pattern[str], scan: Scan, mark: Mark) -> Tag | None:
    """Return the tag of a format with a delimiter for each kind; `name` matches the name of a call or a key."""
    kind = kinds.get(mark.delimiter)
    if kind not in {"call", "key"}:
        return None if kind is None else Tag(kind=kind, start=mark.start, end=mark.end)
    match = name.match(scan.text, mark.end)
    if match is None:
        return None
    return Tag(kind=kind, start=mark.start, end=match.end(), name=match.group(match.lastindex or 1).strip())


class _Malformed(Exception):
    """A call that cannot be read on; it does not leave this module."""


class _Unclosed(_Malformed):
    """The same, because it ends too early."""


_BLOCK_TAGS = frozenset[Kind]({"open", "close", "call"})
_ALL_TAGS = frozenset[Kind]({*_BLOCK_TAGS, "called", "key", "value end"})


def read_block(scan: Scan, syntax: TagSyntax, opening: Tag) -> None:
    """Read the block that `opening`, the next tag, opens."""
    scan.say(opening.start)
    scan.jump(opening.end)
    empty = True
    while True:
        start = scan.at
        tag = _to(scan, syntax, _BLOCK_TAGS)
        stray = bool(scan.text[start : scan.at].strip())
        ended = tag is None or tag.kind != "call"
        if stray or (ended and empty):
            unclosed = tag is None or tag.kind == "open"
            kind = FailureKind.UNCLOSED if unclosed else FailureKind.MALFORMED
            wrong = "unexpected text in the block of tool calls" if stray else "the block of tool calls is empty"
            scan.fail(kind, f"{wrong}; write {syntax.call}", start)
        empty = False
        if tag is None or tag.kind == "open":
            return
        scan.jump(tag.end)
        if tag.kind == "close":
            return
        _read_call(scan, syntax, tag)


def read_unopened(scan: Scan, syntax: TagSyntax, offered: frozenset[str]) -> bool:
    """Pass the tag of a call outside of a block, if it is next; return whether.

    Calls from there on are read if they are whole and nothing follows but tags of blocks. Anything else is a text about
    calls, and so are calls of no tool that is `offered`, unless a block is closed behind them.
    """
    first = tag = syntax.tag(scan, scan.marks[scan.index])
    if first is None or first.kind != "call":
        return False
    fork, closed = scan.fork(), False
    while tag is not None and tag.kind != "open":
        fork.jump(tag.end)
        if tag.kind == "call":
            scan.index = fork.index  # whatever comes of it, it is not read again
            _read_call(fork, syntax, tag)
        closed, end = tag.kind == "close", fork.at
        tag = _to(fork, syntax, _BLOCK_TAGS)
        if fork.text[end : fork.at].strip() or not isinstance(fork.calls[-1], ToolCall):
            return True
    if closed or offered.issuperset(call.name for call in fork.calls):
        scan.say(first.start)
        scan.jump(fork.at)
        scan.calls += fork.calls
        scan.tell("calls")
    return True


def _read_call(scan: Scan, syntax: TagSyntax, call: Tag) -> None:
    """Read the call behind its tag. After a failure the next block tag is not passed."""
    try:
        arguments = {} if call.closes_itself else _arguments(scan, syntax)
    except _Malformed as exc:
        kind = FailureKind.UNCLOSED if isinstance(exc, _Unclosed) else FailureKind.MALFORMED
        _to(scan, syntax, _BLOCK_TAGS)
        of = f"of `{call.name}` " if call.name else ""
        scan.fail(kind, f"the call {of}cannot be read: {exc}", call.start, name=call.name)
        return
    if call.name:
        scan.calls.append(ToolCall(name=call.name, arguments=arguments))
    else:
        scan.fail(FailureKind.MISSING_NAME, f"the tool call has no name; write {syntax.call}", call.start)


def _arguments(scan: Scan, syntax: TagSyntax) -> dict[str, Any]:
    arguments = _body(scan) if syntax.json_body else {}
    while True:
        start = scan.at
        tag = _next(scan, syntax, f"it has no {syntax.called}")
        if scan.text[start : tag.start].strip():
            raise _Malformed(f"unexpected text; write {syntax.key}")
        if tag.kind == "called":
            return arguments
        value = _value(scan, tag, syntax)
        if tag.name in arguments:
            raise _Malformed(f"the parameter `{tag.name}` appears twice")
        arguments[tag.name] = value


def _value(scan: Scan, key: Tag, syntax: TagSyntax) -> Any:
    """Return the value behind `key`, and pass its end."""
    if key.kind != "key":
        raise _Malformed(f"a parameter is closed before it is opened; write {syntax.key}")
    if not key.name:
        raise _Malformed(f"a parameter has no name; write {syntax.key}")
    tag = _next(scan, syntax, _unfinished(key, syntax))
    if tag.kind != "value end":
        raise _Malformed(_unfinished(key, syntax))
    return _leaf(scan.text[key.end : tag.start], key, syntax)


def _unfinished(key: Tag, syntax: TagSyntax) -> str:
    return f"the parameter `{key.name}` has no {syntax.value_end.replace('a_name', key.name)}"


def _body(scan: Scan) -> dict[str, Any]:
    """Return the next JSON object, passed; an empty one if something else comes next."""
    if not scan.text.startswith("{", skip_space(scan.text, scan.at)):
        return {}
    try:
        value, end = read_value(scan.text, scan.at)
    except NotJson as exc:
        wrong = _Unclosed if exc.cut else _Malformed
        raise wrong(f"its arguments are not one valid JSON object: {exc}") from None
    scan.jump(end)
    return value


def _next(scan: Scan, syntax: TagSyntax, complaint: str) -> Tag:
    """Return the next tag of a call, passed."""
    tag = _to(scan, syntax, _ALL_TAGS)
    if tag is None or tag.kind == "open":
        raise _Unclosed(complaint)
    if tag.kind in _BLOCK_TAGS:
        raise _Malformed(complaint)
    scan.jump(tag.end)
    return tag


def _leaf(text: str, tag: Tag, syntax: TagSyntax) -> Any:
    if syntax.strips_newline:
        text = text.removeprefix("\n").removesuffix("\n")
    if not tag.is_json:
        return text
    try:
        return read_all(text)
    except NotJson as exc:
        raise _Malformed(f"the parameter `{tag.name}` is not valid JSON: {exc}") from None


def _to(scan: Scan, syntax: TagSyntax, kinds: frozenset[Kind]) -> Tag | None:
    """Go to the next tag of these kinds, without passing it; None: to the end of the text."""
    while scan.index < len(scan.marks):
        tag = syntax.tag(scan, scan.marks[scan.index])
        if tag is not None and tag.kind in kinds:
            scan.at = tag.start
            return tag
        scan.index += 1
    scan.at = len(scan.text)
    return None
