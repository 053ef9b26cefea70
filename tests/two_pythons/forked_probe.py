"""Answers of `orl_TRAINER.probe` by a process that forks for each question: starting one takes most of the time.

The process runs the Python of a second environment. A question gets its own environment, working folder and arguments.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from orl_cluster.launch.machine.probe import answer_of
from orl_core.errors import ConfigError

FORKS = """
import json, os, runpy, sys
import orl_cluster.launch.machine.probe
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(os.open(asked["errors"], os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(2, 1)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.path[:0] = [path for path in asked["environment"].get("PYTHONPATH", "").split(os.pathsep) if path]
        sys.argv = asked["argv"]
        code = 1
        try:
            runpy.run_module(asked["argv"][0], run_name="__main__")
            code = 0
        finally:
            sys.excepthook(*sys.exc_info()) if code and sys.exc_info()[1] else None
            sys.stderr.flush()
            os._exit(code)
    os.waitpid(child, 0)
    print(flush=True)
"""


_processes: dict[str, subprocess.Popen[str]] = {}


@contextmanager
def forking(python: str) -> Generator[None]:
    """Let a process answer the questions for `python`."""
    command = [python, "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        _processes[python] = process
        yield
        del _processes[python]
        process.kill()


def answer(python: str, module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> bytes:
    """Do what `answer_of` does. A Python without such a process is asked as ever."""
    process = _processes.get(python)
    if process is None:
        return answer_of(python, module, arguments, environment)
    assert process.stdin is not None
    assert process.stdout is not None
    with TemporaryDirectory() as folder:
        file, errors = Path(folder) / "answer.json", Path(folder) / "errors"
        asked = {"argv": [module, str(file), *arguments], "environment": dict(environment)}
        print(json.dumps({**asked, "errors": str(errors), "folder": str(Path.cwd())}), file=process.stdin, flush=True)
        assert process.stdout.readline()
        if file.is_file():
            return file.read_bytes()
        raise ConfigError((errors.read_text("utf-8").strip().splitlines() or ["no message"])[-1])
