"""Serve the stand-in for Tinker until interrupted: `python -m orl_testing.tinker --port 8110 --folder checkpoints`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import torch

from orl_testing.tinker.server import TinkerServer


async def _serve(folder: Path | None, port: int) -> None:
    async with TinkerServer(folder, port=port) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(_serve(options.folder, options.port))
