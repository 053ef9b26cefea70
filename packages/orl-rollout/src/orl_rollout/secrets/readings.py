"""Find bytes in a text however the text is encoded: as it is, escaped, percent-encoded, in base64, in hex, or nested.

A reading of a text is the text without one layer of encoding. Values are searched for in the text and in its readings,
up to DEPTH layers deep. Both sides omit white space and backslashes: a folded, wrapped, quoted or joined line still
matches. So no list of encoded forms is needed, and the cost is linear in the text: 23 ms for a MiB, of which base64 and
hex take 17. They stay, because an authorization header, a `.netrc` or a dump shows the value in base64 (law L6).

The module knows nothing of secrets. It works on bytes (UTF-8), and returns places of the bytes that it was given.
"""

from __future__ import annotations

import binascii
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property, lru_cache
from html import unescape
from itertools import accumulate
from operator import itemgetter

DEPTH = 3  # layers of encoding: percent-encoding of base64 of JSON
LEGIBLE = 8  # bytes of text in a row: fewer in a decoded part occur by chance

ByteRange = tuple[int, int]  # [start:end]
Hits = Callable[[bytes], Iterator[ByteRange]]  # finds places in squeezed bytes
_Locate = Callable[[int, int], ByteRange]  # from a place in a reading to its place in the data

_WHITE = b" \t\n\r\v\f\b"
_LEFT_OUT = _WHITE + b"\\"
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_"
_HEX = b"0123456789abcdefABCDEF"
_TO_STANDARD = bytes.maketrans(b"-_", b"+/")
# Bytes as they look in text: `a` is printable ASCII or white space, `b` a part of a longer character, `.` neither.
_LOOKS = bytes(ord("a" if 32 <= byte < 127 or byte in _WHITE else "b" if byte > 127 else ".") for byte in range(256))
# Escapes by how they begin. A backslash that is escaped itself is left over, and left out.
_ESCAPES = {
    b"\\u": rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}",
    b"\\U": rb"\\U[0-9a-fA-F]{8}",
    b"\\x": rb"\\x[0-9a-fA-F]{2}",
    b"%": rb"%[0-9a-fA-F]{2}",
    b"&": rb"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});",
}


def squeezed(data: bytes) -> bytes:
    """Return `data` without white space and backslashes, and without escapes of white space (`\\n`)."""
    return _blanked(data).translate(None, _LEFT_OUT)


def unescaped(data: bytes) -> bytes:
    """Return `data` with its escapes resolved, those of white space and quotes left out."""
    escapes = _escapes_in(data)
    parts = escapes.split(data) if escapes else [data]
    if len(parts) == 1:
        return data
    parts[1::2] = map(_resolved, parts[1::2])
    return b"".join(parts)


def places(data: bytes, hits: Hits, depth: int = DEPTH) -> Iterator[ByteRange]:
    """Yield the places of `data` that `hits` finds in it or in one of its readings, in no order."""
    blanked = _blanked(data)
    kept: list[int] = []
    for start, end in hits(blanked.translate(None, _LEFT_OUT)):
        kept = kept or [index for index, byte in enumerate(blanked) if byte not in _LEFT_OUT]
        yield kept[start], kept[end - 1] + 1
    if not depth:
        return
    text = unescaped(data)
    if text != data:
        locate = _Unescaped(data)
        for start, end in places(text, hits, depth - 1):
            yield locate(start, end)
    for decoded, locate in _decodings(blanked):
        for start, end in places(decoded, hits, 0):
            yield locate(start, end)
        for first, part in _legible(decoded):
            for start, end in places(part, hits, depth - 1):
                yield locate(first + start, first + end)


def merged(found: Iterable[ByteRange]) -> list[ByteRange]:
    """Return places in order. Places that overlap become one."""
    merged: list[ByteRange] = []
    for start, end in sorted(found):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def encoded(text: str) -> bytes:
    """Return `text` as UTF-8, lone surrogates included."""
    return text.encode("utf-8", "surrogatepass")


def hits_of(needles: Iterable[bytes]) -> Hits:
    """Return a function that finds every occurrence of `needles`, one `bytes.find` after another."""

    def hits(data: bytes) -> Iterator[ByteRange]:
        for needle in needles:
            at = data.find(needle)
            while at >= 0:
                yield at, at + len(needle)
                at = data.find(needle, at + 1)

    return hits


def windows_of(parts: set[bytes], size: int) -> Hits:
    """Return a function that finds every occurrence of `parts`, which all have `size` bytes and are many.

    Each of them covers a whole block of half its size, so only the text at known blocks is compared.
    """
    step = size // 2
    blocks = {part[at : at + step] for part in parts for at in range(step)}

    def hits(data: bytes) -> Iterator[ByteRange]:
        for block in range(0, len(data), step):
            if data[block : block + step] in blocks:
                for at in range(max(0, block - step + 1), block + 1):
                    if data[at : at + size] in parts:
                        yield at, at + size

    return hits


def in_characters(text: str, found: Iterable[ByteRange]) -> list[ByteRange]:
    """Convert places in the bytes of `text` to places in its characters."""
    found = list(found)
    if not found or text.isascii():
        return found
    ends = list(accumulate(len(encoded(character)) for character in text))
    return [(bisect_right(ends, start), bisect_left(ends, end) + 1) for start, end in found]


def _blanked(data: bytes) -> bytes:
    """Return `data` with every escaped white space made two blanks, so that its length stays."""
    if b"\\" in data:
        for escape in (b"\\n", b"\\r", b"\\t", b"\\b", b"\\f"):
            data = data.replace(escape, b"  ")
    return data


def _escapes_in(data: bytes) -> re.Pattern[bytes] | None:
    """Return a pattern of the kinds of escapes that may be in `data`; None if there is none."""
    return _pattern(tuple(begins for begins in _ESCAPES if begins in data))


@cache
def _pattern(kinds: tuple[bytes, ...]) -> re.Pattern[bytes] | None:
    return re.compile(b"(" + b"|".join(_ESCAPES[begins] for begins in kinds) + b")") if kinds else None


@lru_cache(4096)
def _resolved(escape: bytes) -> bytes:
    """Return the bytes that one escape stands for."""
    if escape.startswith((b"%", b"\\x")):
        return bytes.fromhex(escape[-2:].decode())
    if escape.startswith(b"&"):
        return encoded(unescape(escape.decode()))
    units = [int(unit, 16) for unit in escape.decode().replace("\\", "").lower().split("u")[1:]]
    if len(units) == 2:
        units = [0x10000 + ((units[0] - 0xD800) << 10) + units[1] - 0xDC00]
    return chr(units[0]).encode("utf-8", "surrogatepass") if units[0] < 0x110000 else escape


class _Unescaped:
    """Locates places of the unescaped text in `data`."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __call__(self, start: int, end: int) -> ByteRange:
        return self._locate(start)[0], self._locate(end - 1)[1]

    @cached_property
    def _escapes(self) -> list[tuple[int, ByteRange]]:
        """The end of each escape in the text, and its place in `data`."""
        found: list[tuple[int, ByteRange]] = []
        escapes, gained = _escapes_in(self._data), 0
        for escape in escapes.finditer(self._data) if escapes else ():
            gained += len(escape[0]) - len(_resolved(escape[0]))
            found.append((escape.end() - gained, escape.span()))
        return found

    def _locate(self, at: int) -> ByteRange:
        number = bisect_right(self._escapes, at, key=itemgetter(0))
        if number:
            end, place = self._escapes[number - 1]
            at += place[1] - end
        if number < len(self._escapes) and at >= self._escapes[number][1][0]:
            return self._escapes[number][1]
        return at, at + 1


def _decodings(data: bytes) -> Iterator[tuple[bytes, _Locate]]:
    """Yield the base64 and hex letters of `data` decoded, for each possible start of their groups."""
    letters = data.translate(None, _others(_BASE64)).translate(_TO_STANDARD)
    for first in range(4):
        end = first + (len(letters) - first) // 4 * 4
        decoded = binascii.a2b_base64(letters[first:end]) + _tail(letters[end:])
        yield decoded, _Decoded(data, _BASE64, first, (4, 3))
    letters = data.translate(None, _others(_HEX))
    for first in range(2):
        end = first + (len(letters) - first) // 2 * 2
        yield binascii.a2b_hex(letters[first:end]), _Decoded(data, _HEX, first, (2, 1))


def _tail(letters: bytes) -> bytes:
    """Decode the last letters of base64, fewer than a group; its padding is gone."""
    return binascii.a2b_base64(letters + b"=" * (4 - len(letters))) if len(letters) in (2, 3) else b""


class _Decoded:
    """Locates places of a decoded text in `data`: `group` is how many letters of `alphabet` spell how many bytes."""

    def __init__(self, data: bytes, alphabet: bytes, first: int, group: tuple[int, int]) -> None:
        self._data, self._alphabet, self._first, self._group = data, alphabet, first, group

    def __call__(self, start: int, end: int) -> ByteRange:
        letters, made = self._group
        last = self._first - (-end * letters // made) - 1
        return self._letters[self._first + start * letters // made], self._letters[last] + 1

    @cached_property
    def _letters(self) -> list[int]:
        return [at for at, byte in enumerate(self._data) if byte in self._alphabet]


@cache
def _others(alphabet: bytes) -> bytes:
    return bytes(byte for byte in range(256) if byte not in alphabet)


def _legible(decoded: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the parts of `decoded` that look like text, each with its place; of random bytes next to none do."""
    looks, end = decoded.translate(_LOOKS), 0
    while (found := looks.find(b"a" * LEGIBLE, end)) >= 0:
        start = max(end, looks.rfind(b".", end, found) + 1)
        end = looks.find(b".", found)
        end = len(looks) if end < 0 else end
        yield start, decoded[start:end]
