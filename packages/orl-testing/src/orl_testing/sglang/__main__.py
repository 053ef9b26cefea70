"""The stand-in for SGLang as a program: `python -m orl_testing.sglang --port 30000`, with options as SGLang's.

With `MODEL --uds PATH`, as vLLM's, it is the stand-in for vLLM. It continues with the same few ids after every prompt.
Options that it does not know are passed over, so that a test can start it with a command that is meant for an engine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence

from orl_testing.sglang.server import SglangServer
from orl_testing.vllm import VllmServer

IDS = (5, 6, 7)


async def serve(server: SglangServer, model: str, version: str) -> None:
    """Serve until the process is ended, with the weights in the folder `model`, if there are any, as `version`."""
    server.load(model)
    server.weight_version = version
    async with server:
        print(f"serving at {server.url}", flush=True)
        await asyncio.Event().wait()


def main(words: Sequence[str] | None = None) -> None:
    """Read the address and serve."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model-path", default="")
    parser.add_argument("--weight-version", default="default")
    parser.add_argument("--uds", default="")
    known, others = parser.parse_known_args(words)
    if known.uds:
        server, model = VllmServer(lambda _ids, _sampling: IDS), others[0]
        server.socket, server.development = known.uds, os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
        server.pickles = os.environ.get("VLLM_ALLOW_INSECURE_SERIALIZATION") == "1"
    else:
        server, model = SglangServer(lambda _ids, _sampling: IDS, port=known.port), known.model_path
    asyncio.run(serve(server, model, known.weight_version))


if __name__ == "__main__":
    main()
