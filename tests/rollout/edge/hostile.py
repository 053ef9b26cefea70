"""A server whose answers no client should read to the end. The first segment of a path says which: see KINDS."""

from __future__ import annotations

import itertools
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress

OK = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\n%s\r\n"
MEGABYTE = b"x" * (1 << 20)
JSON, EVENTS = b"application/json", b"text/event-stream"


def _endless(kind: bytes, piece: bytes, begin: bytes = b"") -> Iterable[bytes]:
    yield OK % (kind, b"Connection: close\r\n") + begin
    yield from itertools.repeat(piece)


def _sized(kind: bytes, body: bytes) -> Iterable[bytes]:
    yield OK % (kind, b"Content-Length: %d\r\n" % len(body)) + body


def _long() -> Iterable[bytes]:
    yield OK % (JSON, b"Content-Length: 99999999999\r\n")
    yield from itertools.repeat(MEGABYTE)


_WIDE = b'["\xf0\x9f\x98\x80' + b"x" * ((1 << 24) - 100) + b'"]'  # four bytes for each character, once decoded
KINDS: dict[str, Callable[[], Iterable[bytes]]] = {
    "endless": lambda: _endless(JSON, MEGABYTE, b'"'),
    "long": _long,
    "events": lambda: _endless(EVENTS, b"event: chunk\ndata: " + b"x" * 4096 + b"\n\n"),
    "refusal": lambda: itertools.chain([b"HTTP/1.1 400 No\r\n\r\n"], itertools.repeat(MEGABYTE)),
    "values": lambda: _sized(JSON, b"[" + b"{}," * 5_000_000 + b"{}]"),
    "wide": lambda: _sized(JSON, _WIDE),
    "deep": lambda: _sized(JSON, b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
}


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False  # what never ends, ends with its client


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with suppress(ConnectionError):
            kind = self.rfile.readline().split(b"/")[1].decode()
            while self.rfile.readline().strip():
                pass
            for piece in KINDS[kind]():
                self.wfile.write(piece)


def main() -> None:
    """Serve until standard input ends. The first line on stdout is the address."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
        sys.stdin.read()
        server.shutdown()


@contextmanager
def hostile() -> Generator[str]:
    """The address of a server that answers `/KIND/...` as KINDS says, in a process of its own."""
    command = [sys.executable, __file__]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


if __name__ == "__main__":
    main()
