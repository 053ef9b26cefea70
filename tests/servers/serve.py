"""Serve one Environment class with the SDK of this Python, and log what the server answers.

`python serve.py FOLDER MODULE:CLASS LOG`, in the virtual environment of that class. The first line on stdout that
begins with `http` is the address. Each POST is one line of JSON in LOG: path, session, request, status and answer, as
they pass between the SDK's server and the network. It must not know orl.
"""

import importlib
import json
import os
import socket
import sys
from pathlib import Path

import uvicorn


class Logged:
    """An ASGI application that writes the POSTs of another one, and what they were answered, to `log`."""

    def __init__(self, app, log):
        self.app = app
        self.log = log

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http" or scope["method"] != "POST":
            return await self.app(scope, receive, send)
        request, answer, status = bytearray(), bytearray(), None

        async def listen():
            message = await receive()
            request.extend(message.get("body", b""))
            return message

        async def tell(message):
            nonlocal status
            status = message.get("status", status)
            answer.extend(message.get("body", b""))
            await send(message)

        try:
            await self.app(scope, listen, tell)
        finally:
            session = dict(scope["headers"]).get(b"x-session-id", b"").decode()
            self.write(path=scope["path"], session=session, status=status, request=request, answer=answer)

    def write(self, **entry):
        texts = {key: value.decode() if isinstance(value, bytearray) else value for key, value in entry.items()}
        self.log.write(json.dumps(texts) + "\n")
        self.log.flush()


def main(folder, named, log):
    """Serve until the process is ended."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    module, _, name = named.partition(":")
    served = getattr(importlib.import_module(module), name)
    base = next(one for one in served.__mro__ if one.__name__ == "Environment")
    sdk = importlib.import_module("ors" if base.__module__.startswith("ors") else "openreward.environments")
    with socket.socket() as listener, Path(log).open("a", encoding="utf-8") as lines:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        app = Logged(sdk.Server([served]).app, lines)
        uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
