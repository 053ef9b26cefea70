"""The life of the engine's process; a small server replaces it if its answers do not matter."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name

import psutil
import pytest
from msgspec import structs
from orl_core.config import decode_config
from orl_core.errors import EngineError
from orl_local.engine.control import Launch
from orl_local.engine.engine_process import LOG, EngineProcess, command_of, environment_for
from orl_local.engine.fingerprints import Fingerprinted
from orl_local.engine.sglang_control import SglangControl
from orl_local.engine.vllm_control import VllmControl
from orl_rollout.edge.children import guarded
from orl_rollout.logs import work

from tests.kit.quick import every_fifth

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *said):
        pass
print(sys.argv[sys.argv.index("--model-path") + 1], os.environ.get("HF_TOKEN"), flush=True)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
LAUNCH = Launch(control=SglangControl, model="first", context_tokens=64, program=(sys.executable, "-S", "-c", SERVER))
ENVIRONMENT = {**os.environ, "HF_TOKEN": "sesame-123"}


def gone(process: int | None) -> bool:
    """Wait for the end of a process that is no child of this one, or that was reaped."""
    try:
        psutil.Process(process).wait(10)
    except psutil.NoSuchProcess:
        return True
    return not psutil.pid_exists(process or 0)


def pid_of(server: EngineProcess) -> int:
    return server.process.pid


def members(group: int | None) -> list[int]:
    found: list[int] = []
    for process in psutil.pids():
        with suppress(ProcessLookupError):  # it ended meanwhile
            found += [process] if os.getpgid(process) == group else []
    return found


def test_the_command_has_every_option():
    launch = Launch(
        control=SglangControl, model="m", context_tokens=64, seed=3, extra=("--attention-backend", "triton")
    )
    words = command_of(launch, "http://127.0.0.1:30000")
    assert tuple(words[:4]) == SglangControl.PROGRAM
    pairs = dict(zip(words[4::2], words[5::2], strict=False))
    assert pairs["--model-path"] == "m"
    assert pairs["--port"] == "30000"
    assert (pairs["--random-seed"], pairs["--log-level-http"]) == ("3", "warning")
    assert pairs["--host"] == "127.0.0.1"
    assert {"--skip-tokenizer-init", "--enable-memory-saver"} <= set(words)
    assert words[-2:] == ["--attention-backend", "triton"]
    plain = structs.replace(LAUNCH, memory_saver=False)
    assert "--enable-memory-saver" not in command_of(plain, "http://127.0.0.1:1")


def test_vllm_listens_in_a_folder_of_its_own():
    launch = Launch(
        control=VllmControl, model="m", context_tokens=64, seed=3, gpu=2, gpus=2, extra=("--enforce-eager",)
    )
    url = VllmControl.address(Path("/tmp/orl-1"))
    words = command_of(launch, url)
    assert tuple(words[:6]) == (*VllmControl.PROGRAM, "m")
    pairs = dict(zip(words[6::2], words[7::2], strict=False))
    assert (pairs["--uds"], pairs["--weight-transfer-config"]) == ("/tmp/orl-1/vllm", '{"backend":"ipc"}')
    assert resolve_name(pairs["--worker-extension-cls"]) is Fingerprinted
    assert pairs["--device-ids"] == "2,3"
    assert {"--enable-scale-out", "--enable-sleep-mode", "processed_logprobs"} <= set(words)
    assert words[-1] == "--enforce-eager"
    variables = VllmControl.variables(url)
    assert variables["VLLM_RPC_BASE_PATH"] == "/tmp/orl-1"
    assert (variables["VLLM_API_KEY"], variables["VLLM_NO_USAGE_STATS"]) == ("", "1")  # of this user, and to nobody


def test_the_engine_gets_no_secret_of_the_run(monkeypatch: pytest.MonkeyPatch):
    for name in ("OPENREWARD_API_KEY", "MY_TOKEN", "PYTORCH_CUDA_ALLOC_CONF", "SGLANG_MEMORY_SAVER_CUDA_GRAPH"):
        monkeypatch.setenv(name, "sesame")
    config = decode_config({"environments": {"toy/Env": {}}, "secrets": {"my_token": None}}, "test")
    assert "sesame" not in environment_for(config).values()
    assert "PATH" in environment_for(config)


async def test_it_is_healthy_inside_and_gone_after(tmp_path: Path):
    with EngineProcess(LAUNCH, tmp_path, ENVIRONMENT) as server:
        await server.wait()
        assert await SglangControl(server.url).healthy()
        group = pid_of(server)
        assert members(group)
        assert group != os.getpgid(0)
    assert not members(group)
    assert (tmp_path / LOG).read_text("utf-8") == "first [secret]\n"


async def test_it_is_started_again_once_with_the_weights_of_now(tmp_path: Path):
    with EngineProcess(LAUNCH, tmp_path, ENVIRONMENT) as server:
        await server.wait()
        for last in (False, True):
            assert not server.ended
            os.killpg(pid_of(server), signal.SIGKILL)
            assert await server.ends()
            if not last:
                await server.restart(Path("second"), "1")
        with pytest.raises(EngineError, match="twice"):
            await server.restart(Path("third"), "2")
    assert (tmp_path / LOG).read_text("utf-8").split("\n")[-2].startswith("second")


async def test_restarted_vllm_has_the_tokenizer_of_the_first_model(tmp_path: Path):
    program = (sys.executable, "-m", "orl_testing.sglang")
    launch = Launch(control=VllmControl, model="first", context_tokens=64, program=program)
    with EngineProcess(launch, tmp_path, ENVIRONMENT) as server:
        await server.wait()
        os.killpg(pid_of(server), signal.SIGKILL)
        assert await server.ends()
        await server.restart(Path("second"), "1")
        words = psutil.Process(pid_of(server)).cmdline()
    assert "second" in words
    assert words[words.index("--tokenizer") + 1] == "first"


async def test_a_server_that_ends_at_once_is_an_error_with_its_last_line(tmp_path: Path):
    says = r"print('loading: 10 %\r\x1b[1;33mno GPU here\x1b[0m'); raise SystemExit(3)"
    launch = structs.replace(LAUNCH, program=(sys.executable, "-S", "-c", says))
    with EngineProcess(launch, tmp_path, ENVIRONMENT) as server, pytest.raises(EngineError, match="no GPU") as found:
        await server.wait()
    assert "loading" not in str(found.value)
    assert "[0m" not in str(found.value)


STAGES = {
    "compiles kernels": "subprocess.Popen([os.environ['NINJA'], '2'])",
    "imports": "print('server_args=ServerArgs()', flush=True)",
    "captures CUDA graphs": "print('Capture target decode CUDA graph begin.', flush=True)",
    "Load weight begin": "print('Load weight begin', flush=True)",
}


@pytest.mark.parametrize("stage", every_fifth(STAGES))
async def test_wait_shows_what_sglang_does(tmp_path: Path, stage: str):
    ninja = shutil.copy(shutil.which("sleep") or "", tmp_path / "ninja")
    program = f"import os, subprocess, sys, time\n{STAGES[stage]}\ntime.sleep(1)\n{SERVER}"
    launch = structs.replace(LAUNCH, program=(sys.executable, "-S", "-c", program))
    texts: list[str] = []
    with EngineProcess(launch, tmp_path, {**ENVIRONMENT, "NINJA": str(ninja)}) as server:
        waiting = asyncio.create_task(server.wait())
        while not (await asyncio.wait({waiting}, timeout=0.02))[0]:
            texts.append(work())
        await waiting
    assert any(f"SGLang starts: {stage}" in text for text in texts)
    assert work() == ""


def test_engine_keeps_byte_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = decode_config({"environments": {"toy/Env": {}}}, "test")
    monkeypatch.setenv("ORL_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    assert environment_for(config)["PYTHONPYCACHEPREFIX"] == str(tmp_path / "bytecode")
    assert "PYTHONDONTWRITEBYTECODE" not in environment_for(config)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", "/mine")
    assert environment_for(config)["PYTHONPYCACHEPREFIX"] == "/mine"


def killed(parent: str, *words: str) -> int:
    """Kill the program `parent` once it says the id of its child. Return that id."""
    process = subprocess.Popen([sys.executable, "-c", parent, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as said:
        child = int(said.readline())
        assert psutil.pid_exists(child)
        process.kill()
        process.wait()
    return child


@pytest.mark.parametrize("sleeps", ["sleep 60", pytest.param("trap '' TERM; sleep 60", marks=pytest.mark.slow)])
def test_a_guarded_command_ends_with_a_parent_killed_by_force(sleeps: str):
    parent = (
        "import subprocess, sys; from orl_rollout.edge.children import guarded\n"
        "subprocess.Popen(guarded(['sh', '-c', 'echo $$; ' + sys.argv[1]]), start_new_session=True).wait()"
    )
    assert gone(killed(parent, sleeps))


@pytest.mark.parametrize(("program", "code"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_a_guard_passes_the_exit_code_on(program: str, code: int):
    ended = subprocess.run(guarded(["sh", "-c", program]), start_new_session=True, check=False)
    assert ended.returncode == code
