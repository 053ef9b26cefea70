"""The `orl` command: find the command, import only that one, turn our errors into one line and an exit code.

Nothing but argparse is imported before a command is chosen, so that `orl --help` answers at once.
Exit codes: 0 done, 1 failed, 2 the command line is wrong. A signal that came while the command ran gives 128 plus its
number, even if the command finished: 129 SIGHUP, 130 SIGINT, 143 SIGTERM.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

from orl_launcher import as_started, invocation

COMMANDS = {
    "init": "write a configuration for an environment, from the answers of its server, and check it",
    "prepare": "list, mix and shuffle the tasks of the environments, and write tasks.jsonl",
    "train": "train a model: local on this machine, slime or miles on a cluster",
    "warm-start": "teach a model the form of play: supervised training on episodes, before any trainer",
    "convert": "convert a checkpoint between the formats of Hugging Face and a trainer on a cluster",
    "rollout": "play tasks without training: metrics, pass@k, a journal",
    "gateway": "serve a model to any agent, and record exactly what was sampled",
    "show": "show a run or a journal, in the terminal or as an HTML page",
    "export": "write episodes in chat format, as JSON lines",
    "view": "show runs in a browser: curves and every episode, live",
    "doctor": "check configuration, secrets, environments, tokenizer, engine and trainer before a run",
    "upload": "upload the rollouts that were not sent during the run",
    "install-into": "install orl into the environment of slime or miles",
}

# Libraries read these once, when they load. OpenMP's threads share the cores with the environment's server: spinning
# while they wait makes a batch several times slower. Nobody is told of a run, and nothing phones home for updates.
LIBRARY_DEFAULTS = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "OPENREWARD_DISABLE_UPDATE_CHECK": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}

HELP = """\
orl trains language-model agents with reinforcement learning on OpenReward environments.

usage: orl COMMAND [options]      orl COMMAND --help shows options and examples

commands:
{commands}

first steps, without GPU or key:
  orl train local                           teach a tiny model to play a game, 3 minutes
  orl view                                watch the run in a browser: curves and every episode
  orl show                                the latest run in the terminal
  orl show --episode 1                    one episode, with trained tokens in colour

your own environment, on a server of yours:
  orl init http://127.0.0.1:8080 --output my.yaml
  orl train local --config my.yaml

your own agent, in any framework:
  orl rollout --config configs/agent.yaml --agent my_module:agent
  orl train local --config configs/agent.yaml --agent my_module:agent

on OpenReward, with OPENREWARD_API_KEY set:
  orl init GeneralReasoning/WhoDunIt --model Qwen/Qwen3-4B --output my.yaml
  orl rollout --config my.yaml --max-tasks 16
  orl train local --config my.yaml
  orl train slime --config my.yaml --model /models/Qwen3-4B --python PYTHON
"""


FULL_DISK = (errno.ENOSPC, errno.EDQUOT)  # no room, or none for this user
LEAVE_SECONDS = 5.0  # for the interpreter to end, before threads that are stuck are left behind


def program() -> NoReturn:
    """Run the command line of this process. After a signal, end in bounded time.

    While the interpreter shuts down, a signal has its default effect and no stuck thread is waited for.
    """
    code = main()
    try:
        sys.stdout.flush()
    except OSError as exc:  # `orl ... | head`, or a full disk: the interpreter must not try again
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if code == 0 and exc.errno in FULL_DISK:
            code = _say_full(exc)
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) not in (signal.SIG_IGN, None):
            signal.signal(ending, signal.SIG_DFL)
    if code > 128:
        threading.Thread(target=_leave, args=(code,), name="orl-leave", daemon=True).start()
    sys.exit(code)


def _leave(code: int) -> None:
    time.sleep(LEAVE_SECONDS)
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, given without the program's name. Return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        listed = "\n".join(f"  {name:<{width}}  {what}" for name, what in COMMANDS.items())
        print(as_started(HELP.format(commands=listed)), end="")
        return 0
    if words[0] == "--version":
        from importlib.metadata import version

        print(f"orl {version('orl-launcher')}")
        return 0
    return _guarded(words)


def _guarded(words: list[str]) -> int:
    from orl_rollout.edge import interrupt
    from orl_rollout.edge.descriptors import raise_limit

    from orl_launcher import cli

    raise_limit()
    if isinstance(cast("object", sys.stdout), io.TextIOWrapper):
        cast("io.TextIOWrapper[Any]", sys.stdout).reconfigure(errors="replace")  # a terminal may lack bars and arrows
    for name, value in LIBRARY_DEFAULTS.items():
        os.environ.setdefault(name, value)
    with interrupt.listening() as signals:
        code = _run(words)
    if signals.first is not None and code != cli.EXIT_INTERRUPTED:
        _say("orl: interrupted")
    return signals.exit_code(code)


def _run(words: list[str]) -> int:
    from orl_core.errors import OrlError

    from orl_launcher import cli

    try:
        if words[0] not in COMMANDS:
            from orl_core.text import did_you_mean

            near = did_you_mean(words[0], COMMANDS)
            raise cli.UsageError(
                f"unknown command {words[0]}{near or ': ' + ', '.join(COMMANDS)} (see {invocation()} --help)"
            )
        parser = cli.Parser(words[0], words[1:])
        return parser.run(parser.parse())
    except OrlError as exc:
        from orl_rollout.logs import shown

        _say(f"orl: error: {' '.join(shown(str(exc)).split())}")
        return cli.EXIT_USAGE if isinstance(exc, cli.UsageError) else cli.EXIT_FAILED
    except KeyboardInterrupt:
        _say("orl: interrupted")
        return cli.EXIT_INTERRUPTED
    except BrokenPipeError:  # `orl show ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as exc:
        if exc.errno not in FULL_DISK:
            raise
        return _say_full(exc)


def _say_full(exc: OSError) -> int:
    _say(f"orl: error: {exc}. Make room on the disk, then run the command again")
    return 1


def _say(line: str) -> None:
    with suppress(OSError):  # standard error may be closed, and the exit code still counts
        print(line, file=sys.stderr, flush=True)
