"""`orl view`: show runs in a browser, from a server on this machine that reads and never writes their folders."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from orl_core.errors import OrlError, boundary

from orl_launcher import cli
from orl_launcher.trainers import RUNS

if TYPE_CHECKING:
    from orl_launcher.view.server import Viewer

DESCRIPTION = """\
Show runs in a browser: curves, all episodes with filters, single episodes with their ids.
Pages follow a run that trains. The server listens on 127.0.0.1 and answers only the address that it prints.
The first visit of a large journal takes a while: it is read from its beginning.
"""
EXAMPLES = """\
  orl view                        all runs in runs/
  orl view runs/local             one run
  orl view runs --port 8765       ssh -L 8765:127.0.0.1:8765 HOST brings it to your own machine
"""


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl view`."""
    options.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        nargs="?",
        default=RUNS,
        help="folder of runs, a run, or a journal's file (default: runs)",
    )
    options.add_argument("--port", type=cli.positive, metavar="N", help="port to listen on (default: a free one)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from orl_rollout.edge import interrupt

    from orl_launcher.view.server import Viewer

    interrupt.run(_serve(Viewer(arguments.path), arguments.port or 0))
    return 0


async def _serve(viewer: Viewer, port: int) -> None:
    from aiohttp import web

    runner = web.AppRunner(viewer.app(), access_log=None)
    await runner.setup()
    try:
        with boundary(OrlError, f"listening on port {port} of 127.0.0.1"):
            site = web.TCPSite(runner, "127.0.0.1", port, shutdown_timeout=1.0)
            await site.start()
        address = f"http://127.0.0.1:{runner.addresses[0][1]}/{viewer.token}/"
        cli.console().print(f"runs are shown at {address}  (Ctrl-C ends)")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
