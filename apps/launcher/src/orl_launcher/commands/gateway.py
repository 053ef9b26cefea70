"""`orl gateway`: serve a running engine to agents with tools of their own, and record exactly what was sampled.

The server is the entry point `orl.gateways`. The key is in a variable, never on the command line (law L6).
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys
from typing import Any, cast

from msgspec import structs
from orl_core.config import EnvironmentConfig, RunConfig
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.contract import GatewayAddress, GatewayServer

from orl_launcher import cli, invocation
from orl_launcher.configuration import resolve
from orl_launcher.trainers import BUDGETS, add_shared

SESSIONS = "orl/gateway"  # the environment's name in the journal
KEY = "ORL_GATEWAY_KEY"
_GOOD = re.compile(r"[A-Za-z0-9_-]{16,}\Z").match
MAX_TURNS = 1000
BARE: dict[str, Any] = {
    "environments": {SESSIONS: {}},
    "rollout": {"rollout_timeout": 86400, "rollout_tokens": 1 << 24},
}

DESCRIPTION = """\
Serve a model to any agent over the APIs of OpenAI and Anthropic, and record the token ids that were sampled.
The agent brings its own tools: no environment is played. --engine is a running server or router of SGLang or vLLM.
Every session is one episode in the journal, which `orl show` reads. The key opens one session after another. POST
/sessions begins one with a token of its own. DELETE of its address ends it, with {"reward": 1.0} if you like. DELETE
/s/KEY?session=ID ends one of the key, GET /s/KEY returns its ID. The end of the gateway ends all of them.
Of the file, `rollout`, `reward`, `eval` (temperature, top_p) and what concerns the chat template are used.
"""
EXAMPLES = """\
  orl gateway --model Qwen/Qwen3-4B --engine http://127.0.0.1:30000 --port 8000
  orl gateway --model Qwen/Qwen3-4B --engine http://127.0.0.1:30000 --port 8000 --config my.yaml --name agent
  OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=$ORL_GATEWAY_KEY my-agent
  curl -X POST http://127.0.0.1:8000/sessions -H "Authorization: Bearer $ORL_GATEWAY_KEY"
"""


def add_options(options: cli.Parser) -> None:
    """Add the options of `orl gateway`."""
    cli.add_config(options, required=False)
    options.add_argument(
        "--engine", type=cli.address, required=True, metavar="URL", help="running server or router of SGLang or vLLM"
    )
    add_shared(options, ["model"])
    options.add_argument("--port", type=cli.positive, metavar="N", help="port to listen on (default: a free one)")
    options.add_argument(
        "--host", default="127.0.0.1", metavar="NAME", help="interface to listen on (default: 127.0.0.1, this machine)"
    )
    add_shared(options, [*BUDGETS])
    options.add_argument(
        "--max-turns", type=cli.positive, default=MAX_TURNS, metavar="N", help=f"turns of a session ({MAX_TURNS})"
    )
    cli.add_name(options)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal comes, which is the normal end."""
    from orl_rollout.edge.secrets import Scrubber
    from orl_rollout.logs import keep_out

    from orl_launcher.doctor.engine import check_answers

    config, folder, _ = resolve(arguments, "gateway", bare=BARE, model="needed")
    config = _sessions(arguments, config)
    serve = cast("GatewayServer", cli.entry("orl.gateways").load())
    own_key = os.environ.get(KEY, "")
    if not own_key and not sys.stdout.isatty():
        raise cli.UsageError(f"{KEY} is not set, and a new key would be written to this output. Set the variable")
    key = os.environ[KEY] = own_key or secrets.token_urlsafe(32)
    if not _GOOD(key):
        raise cli.UsageError(f"{KEY} is a part of addresses: set it to 16 or more letters, digits, `-` and `_`")
    keep_out(Scrubber.of(config))
    interrupt.run(check_answers(arguments.engine))
    cli.make_folder(folder)
    address = GatewayAddress(engine=arguments.engine, key=key, host=arguments.host, port=arguments.port or 0)

    def announce(url: str) -> None:
        console = cli.console()
        console.print(f"gateway {url}, journal {folder}", style="bold")
        shown = f"${KEY}" if own_key else key
        console.print(f"  export OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={shown}")
        console.print(f"  export ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={shown}")

    try:
        interrupt.run(serve(config, folder, address, announce))
    finally:
        cli.console().print(f"To show the sessions: {invocation()} show {folder}")
    return 0


def _sessions(arguments: argparse.Namespace, config: RunConfig) -> RunConfig:
    """Return the configuration of sessions: that of the file, with their own environment in place of the file's."""
    if config.agent_config and config.agent_config.name:
        raise cli.UsageError(
            "`agent` names who plays environments, and a gateway has none. Remove it: --set agent=null"
        )
    if config.rollout.upload:
        raise cli.UsageError("`rollout.upload`: sessions have no environment at OpenReward. Set it to false")
    sessions = EnvironmentConfig(max_turns=arguments.max_turns)
    budgets = structs.replace(config.rollout, journal=None, upload=False)
    secrets = {**config.secrets, KEY: None}  # a text that echoes it is scrubbed
    return structs.replace(config, environments={SESSIONS: sessions}, rollout=budgets, secrets=secrets)
