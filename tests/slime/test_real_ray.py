"""On a real Ray: the places of a secret, several clusters on one machine, and clusters of others."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from orl_cluster.launch.machine.ray_cluster import environment_for, ray_cluster
from orl_cluster.launch.machine.required_env import RequiredEnv
from orl_core.errors import ConfigError

from tests.two_pythons.environment import make_environment

pytestmark = pytest.mark.slime
NAME, VALUE = "ORL_TEST_SECRET", "hush-hush-4b1d"
MARK = "ORL_TEST_FOLDER"  # tells the processes of a test from those of other clusters of the machine
NEEDS = RequiredEnv(package="orl_slime", variables=((NAME.lower(), NAME),))
SECONDS = 60.0  # for anything that is waited for


def environment(**variables: str) -> dict[str, str]:
    """A clean one, which sees neither a cluster of this machine's own nor the real trainer."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = os.pathsep.join(path for path in given if path and not (Path(path) / "slime").is_dir())
    kept = environment_for(sys.executable, {"PYTHONPATH": paths})
    return {name: value for name, value in kept.items() if not name.startswith(("RAY_ADDRESS", "RAY_AUTH"))} | variables


def read(process: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{file}").read_bytes()
    except OSError:  # it has ended
        return b""


def sessions(mark: str) -> set[int]:
    """The sessions of the processes that were started with `mark` in their environment."""
    marked = [process for process in processes() if mark.encode() in read(process, "environ")]
    return {session for process in marked if (session := session_of(process)) is not None}


def processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]


def session_of(process: int) -> int | None:
    fields = read(process, "stat").rpartition(b")")[2].split()
    return int(fields[3]) if fields and fields[0] != b"Z" else None


def living(those: set[int]) -> list[bytes]:
    """The command lines of what is left in these sessions."""
    return [read(process, "cmdline") for process in processes() if session_of(process) in those]


def await_(what: Callable[[], Any], why: str) -> Any:
    ends = time.monotonic() + SECONDS
    while not (found := what()):
        assert time.monotonic() < ends, why
        time.sleep(0.2)
    return found


def test_a_secret_is_in_the_environment_of_an_actor_and_nowhere_else(tmp_path: Path):
    folder, answer = tmp_path / "run", tmp_path / "answer.json"
    folder.mkdir()
    driver = [sys.executable, str(Path(__file__).with_name("ray_driver.py")), str(answer), NAME]
    with ray_cluster(
        sys.executable, environment(**{NAME: VALUE, MARK: str(folder)}), gpus=0, log=folder / "ray.log", needs=NEEDS
    ) as reachable:
        with (folder / "trainer.log").open("wb") as log:
            running = subprocess.Popen(driver, env=reachable, stdin=subprocess.PIPE, stdout=log, stderr=log)
        try:
            await_(lambda: answer.is_file() or running.poll() is not None, "the driver never answered")
            commands = [read(process, "cmdline") for process in processes()]
            own = [
                read(process, "cmdline") for process in processes() if str(folder).encode() in read(process, "environ")
            ]
            theirs = [Path(word.decode()) for command in own for word in command.split(b"\0") if b"orl-ray" in word]
            (temporary,) = {path for path in theirs if path.is_dir() and path.name.startswith("orl-ray-")}
            written = [path for path in temporary.rglob("*") if path.is_file() and not path.is_symlink()]
            logs = b"".join(path.read_bytes() for path in [*written, *folder.iterdir()])
        finally:
            running.communicate(timeout=SECONDS)
    assert running.returncode == 0, (folder / "trainer.log").read_text(encoding="utf-8")
    said = json.loads(answer.read_text(encoding="utf-8"))
    assert said["digest"] == hashlib.sha256(VALUE.encode()).hexdigest(), "an actor sees it"
    assert any(b"ray_driver.py" in command for command in commands), "the processes were looked at"
    assert any("Reader" in table for table in said["tables"]), "the tables were looked at"
    assert len(written) > 5
    assert VALUE not in "".join(said["tables"])
    assert "_ray_pkg" not in "".join(said["tables"]), "under `uv run`, Ray would upload this folder and use its Python"
    assert VALUE.encode() not in b"".join(commands)
    assert VALUE.encode() not in logs
    assert not temporary.exists()


def test_existing_cluster_is_used_only_if_all_nodes_qualify(tmp_path: Path):
    log, lacking = tmp_path / "ray.log", "ORL_TEST_OTHER"
    with ray_cluster(sys.executable, environment(**{NAME: VALUE}), gpus=0, log=log, needs=RequiredEnv()) as theirs:
        own = theirs | {lacking: "set here, which helps nobody"}
        with ray_cluster(sys.executable, own, gpus=0, log=log, needs=NEEDS) as accepted:
            assert own.items() <= accepted.items()
        needs = RequiredEnv(package="orl_slime", variables=(*NEEDS.variables, (lacking.lower(), lacking)))
        told = rf"node [\d.]+ has no {lacking}: .*`{lacking}=... ray start --head`"
        with (
            pytest.raises(ConfigError, match=told) as refused,
            ray_cluster(sys.executable, own, gpus=0, log=log, needs=needs),
        ):
            pass
        assert VALUE not in str(refused.value)
        with (
            pytest.raises(ConfigError, match="does not find orl_nowhere"),
            ray_cluster(sys.executable, own, gpus=0, log=log, needs=RequiredEnv(package="orl_nowhere")),
        ):
            pass
        gone = str(tmp_path / "gone")
        with (
            pytest.raises(ConfigError, match=f"does not see {gone}: ") as refused,
            ray_cluster(sys.executable, own, gpus=0, log=log, needs=RequiredEnv(paths=(str(tmp_path), gone))),
        ):
            pass
    with (
        pytest.raises(ConfigError, match="no cluster answers there"),
        ray_cluster(sys.executable, own, gpus=0, log=log, needs=NEEDS),
    ):
        pass


SHOW = """
import json, os, sys, ray
ray.init(address="auto", log_to_driver=False)
options = {"runtime_env": {"env_vars": {"OF_TRAINER": "set"}}}  # as trainers give to their actors
shown = ray.remote(lambda names: {name: os.environ.get(name) for name in names}).options(**options)
print(json.dumps(ray.get(shown.remote(sys.argv[1:]))))
"""


def test_workers_of_an_existing_cluster_get_the_trainers_variables(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """That cluster was started with none of them. A path is the user's own, and the job's is of `ray job submit`."""
    needs = RequiredEnv(settings={"QUEUES": "1"}, gpus=2)
    job = json.dumps({"runtime_env": {"env_vars": {"QUEUES": "8", "OF_JOB": "set"}}})
    with (
        ray_cluster(sys.executable, environment(), gpus=0, log=tmp_path / "ray.log", needs=RequiredEnv()) as theirs,
        ray_cluster(
            sys.executable,
            theirs | {"RAY_JOB_CONFIG_JSON_ENV_VAR": job, "PYTHONPATH": str(tmp_path)},
            gpus=0,
            log=tmp_path / "ray.log",
            needs=needs,
        ) as joined,
    ):
        asked = [sys.executable, "-c", SHOW, "QUEUES", "OF_JOB", "OF_TRAINER", "PYTHONPATH"]
        said = subprocess.run(asked, env=joined, capture_output=True, text=True, timeout=SECONDS, check=True).stdout
    seen = json.loads(said.splitlines()[-1])
    assert str(tmp_path) in seen.pop("PYTHONPATH").split(os.pathsep)
    assert seen == {"QUEUES": "1", "OF_JOB": "set", "OF_TRAINER": "set"}
    assert "has 0 GPUs and the run needs 2" in caplog.text


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_environment(tmp_path_factory.mktemp("real") / "env", "slime", real_ray=True))


@pytest.fixture
def started(python: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """`orl train` on a cluster of its own or one that it joins, marked by its name, with a trainer that waits."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "?", "label": ""}\n', encoding="utf-8")
    (tmp_path / "config.yaml").write_text("environments: {Org/Env: {base_url: 'http://127.0.0.1:9'}}", encoding="utf-8")
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *more: str, **joined: str) -> subprocess.Popen[bytes]:
        options = ["--config", "config.yaml", "--task-data", "tasks.jsonl", "--model", "model", "--num-gpus", "1"]
        argv = ["train", "slime", *options, "--model-args", "qwen3-0.6B", "--python", python, "--name", name, *more]
        command = [sys.executable, "-c", "import sys; from orl_launcher.main import main; sys.exit(main())", *argv]
        variables = {"STAND_IN_ENDS": "waits", "STAND_IN_GPUS": "1", "ORL_TEST_MARK": f"marked-{name}", **joined}
        with (tmp_path / f"{name}.log").open("wb") as log:
            running.append(
                subprocess.Popen(command, cwd=tmp_path, env=environment(**variables), stdout=log, stderr=log)
            )
        return running[-1]

    yield start
    for process in running:
        process.terminate()
        process.wait(SECONDS)


def test_two_runs_on_one_machine_do_not_meet_and_each_ends_alone(started: Any, tmp_path: Path):
    """One is interrupted from the keyboard, the other told to end by a scheduler."""
    runs = {name: started(name) for name in ("one", "other")}
    seen = {name: tmp_path / "runs" / name / "seen.json" for name in runs}
    for name, run in runs.items():
        await_(lambda: seen[name].is_file() or run.poll() is not None, "no trainer was started")  # noqa: B023
        assert run.poll() is None, (tmp_path / f"{name}.log").read_text(encoding="utf-8")
    addresses = {json.loads(file.read_text(encoding="utf-8"))["environment"]["RAY_ADDRESS"] for file in seen.values()}
    assert len(addresses) == 2
    theirs = {name: sessions(f"marked-{name}") - {os.getsid(0)} for name in runs}
    assert len(theirs["one"]) >= 3, "the cluster, the trainer, and what writes their logs"
    runs["one"].send_signal(signal.SIGINT)
    assert runs["one"].wait(SECONDS) == 130
    assert living(theirs["one"]) == []
    assert runs["other"].poll() is None
    assert any(b"gcs_server" in command for command in living(theirs["other"]))
    runs["other"].send_signal(signal.SIGTERM)
    assert runs["other"].wait(SECONDS) == 143
    assert living(theirs["other"]) == []
    assert json.loads((tmp_path / "runs/other/summary.json").read_text(encoding="utf-8"))["interrupted"] is True
