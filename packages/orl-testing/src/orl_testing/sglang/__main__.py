"""The stand-in for SGLang as a program: `python -m orl_testing.sglang --port 30000`, with options as SGLang's.

It continues with the same few ids after every prompt. Options that it does not know are passed over, so that a test can
start it with a command that is meant for SGLang.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

from orl_testing.sglang.server import SglangServer

IDS = (5, 6, 7)


async def serve(port: int, model: str, version: str) -> None:
    """Serve until the process is ended, with the weights in the folder `model`, if there are any, as `version`."""
    async with SglangServer(lambda _ids, _sampling: IDS, port=port) as server:
        server.load(model)
        server.weight_version = version
        print(f"serving at {server.url}", flush=True)
        await asyncio.Event().wait()


def main(words: Sequence[str] | None = None) -> None:
    """Read the port and serve."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model-path", default="")
    parser.add_argument("--weight-version", default="default")
    known, _ = parser.parse_known_args(words)
    asyncio.run(serve(known.port, known.model_path, known.weight_version))


if __name__ == "__main__":
    main()
