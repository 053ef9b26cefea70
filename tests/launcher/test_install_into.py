"""`orl install-into` adds our wheels to an environment and changes nothing else there."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from orl_launcher.commands.install_into import installed, write_wheel
from orl_launcher.main import main


def environment(folder: Path, *packages: str) -> str:
    python = str(folder / "bin" / "python")
    subprocess.run(["uv", "venv", "--quiet", str(folder)], check=True, timeout=120)
    if packages:
        subprocess.run(["uv", "pip", "install", "--quiet", "--python", python, *packages], check=True, timeout=300)
    return python


@pytest.mark.parametrize("trainer", ["slime", pytest.param("miles", marks=pytest.mark.runs)])
@pytest.mark.slow
def test_an_environment_gets_the_adapter_and_keeps_its_versions(tmp_path: Path, trainer: str) -> None:
    python = environment(tmp_path / "env", "msgspec==0.19.0", "tenacity==9.1.2")
    for _ in range(2):  # a second time is an update
        assert main(["install-into", python, "--trainer", trainer]) == 0
    after = installed(python)
    assert (after["msgspec"], after["tenacity"]) == ("0.19.0", "9.1.2")
    assert {"orl-core", "orl-rollout", "orl-cluster", "orl-gateway", f"orl-{trainer}"} <= after.keys()
    assert not {"orl-launcher", "orl-local", "torch"} & after.keys()
    probe = [python, "-m", f"orl_{trainer}.probe", str(tmp_path / "answer"), "--"]
    asked = subprocess.run(probe, timeout=60, check=False)
    assert asked.returncode == 0


def test_package_conflicting_with_environment_is_not_installed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    python = environment(tmp_path / "env", "tenacity==7.0.0")
    before = installed(python)
    assert main(["install-into", python, "--trainer", "slime"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "tenacity" in line
    assert installed(python) == before


def test_a_python_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for program in (tmp_path / "nowhere", Path("true")):
        assert main(["install-into", str(program)]) == 1
        assert program.name in capsys.readouterr().err


def test_the_checkouts_own_python_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install-into", sys.executable]) == 2
    assert "by its path" in capsys.readouterr().err


def test_written_wheel_is_what_was_installed(tmp_path: Path) -> None:
    python = environment(tmp_path / "env", str(write_wheel("idna", tmp_path)))  # with scripts, which stay behind
    assert installed(python) == {"idna": version("idna")}
    assert subprocess.run([python, "-c", "import idna"], timeout=60, check=False).returncode == 0


def test_package_that_orl_lacks_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orl_cluster.launch.cluster_trainer.ClusterTrainer.packages", ("orl-nothing",))
    assert main(["install-into", "/usr/bin/python3", "--trainer", "slime"]) == 1
    assert "pip install orl-nothing" in capsys.readouterr().err
