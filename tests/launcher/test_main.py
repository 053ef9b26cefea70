"""The command line: help that teaches, errors in one line with an exit code, nothing imported before it is needed."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from orl_core.config import load_config
from orl_launcher import invocation, trainers
from orl_launcher.cli import DEFAULT_CONFIG
from orl_launcher.commands import train
from orl_launcher.main import COMMANDS, main
from orl_launcher.playground import checkpoint_folder
from orl_rollout.run_folder.config_file import read_object

from tests.kit.collector import Collector
from tests.kit.configs import LOCAL
from tests.launcher import adapters

WHODUNIT = str(Path(__file__).parents[2] / "configs" / "whodunit.yaml")

Capture = pytest.CaptureFixture[str]
Training = Callable[[str, str], list[str]]


def fails(capsys: Capture, code: int, *argv: str) -> str:
    """The one line that `argv` fails with."""
    assert main(argv) == code
    printed = capsys.readouterr()
    assert printed.err.startswith("orl: error: ")
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.fixture
def no_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "installed", dict)


def test_help_names_every_command_and_how_to_begin(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("orl 0.")
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name}" in shown for name in COMMANDS)
    assert "orl train local" in shown


def test_help_imports_no_package_but_its_own() -> None:
    program = (
        "import sys; before = {*sys.modules}\n"
        "from orl_launcher.main import main; main(['--help']); loaded = {*sys.modules} - before\n"
        "slow = {'argparse', 'asyncio', 'inspect', 'json', 'importlib.metadata', 'pathlib', 'logging'} & loaded\n"
        "packages = {name.partition('.')[0] for name in loaded} - {*sys.stdlib_module_names}\n"
        "sys.exit(str(slow or packages) if slow or packages != {'orl_launcher'} else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_help_of_commands_has_examples_and_no_heavy_import() -> None:
    program = (
        "import sys; from orl_launcher.main import main\n"
        f"for command in {[*COMMANDS]}:\n"
        "    try: main([command, '--help'])\n"
        "    except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'openreward', 'matplotlib', 'aiohttp', 'tokenizers'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert f"examples:\n  {invocation()} {command} " in done.stdout


@pytest.mark.parametrize("command", [["train", "local", "--dry-run"], pytest.param(["doctor"], marks=pytest.mark.slow)])
def test_plans_import_no_trainer_and_no_sdk(command: list[str], guess_number: str, tmp_path: Path) -> None:
    """The SDK alone took 9 s of CPU."""
    served = ["--set", f"environments.playground/GuessNumber.base_url={guess_number}"]
    program = (
        "import sys; from orl_launcher.main import main\n"
        f"main({[*command, '--config', LOCAL, *served]})\n"
        "sys.exit(str({'torch', 'transformers', 'openreward', 'jinja2'} & set(sys.modules)))"
    )
    environment = {**os.environ, "ORL_CACHE": str(tmp_path)}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.stderr.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["trian"], "did you mean train?"),
        (["train", "local", "--lrr", "3"], "did you mean --lr?"),
        (["train", "--num-rollouts=3"], "did you mean --num-rollout?"),
        (["prepare", "--config", LOCAL, "--out", "x"], "did you mean --output?"),
        (["prepare", "--config", LOCAL, "--output", "x", "--max-tasks", "0"], "at least 1"),
        (["train", "verl"], "slime"),
        (["train", "--conf", LOCAL], "did you mean --config?"),
        (["train", "slime", "--entropy-coef", "0.1"], "after `--`"),
        (["train", "slime", "--async-buffer-size", "2"], "after `--`"),
        (["train", "local", "--python", "/usr/bin/python3"], "--python"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_suggests(capsys: Capture, argv: list[str], hint: str) -> None:
    assert hint in fails(capsys, 2, *argv)


def test_missing_configuration_says_how_to_get_one(capsys: Capture) -> None:
    told = fails(capsys, 1, "train", "local", "--config", "nowhere.yaml")
    assert "nowhere.yaml: no such file" in told
    assert "orl init" in told
    assert "Errno" not in told


def test_default_configuration_needs_no_checkout(
    capsys: Capture, fake_adapter: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_adapter("train_well")
    monkeypatch.setenv("ORL_CACHE", str(tmp_path / "cache"))
    assert main(["train", "local", "--dry-run"]) == 0
    assert "would train playground/GuessNumber" in capsys.readouterr().out
    assert load_config(Path(DEFAULT_CONFIG)) == load_config(Path(DEFAULT_CONFIG))


@pytest.mark.parametrize(("command", "model"), [(["train", "local"], "/nowhere/model"), (["rollout"], "./model")])
def test_missing_model_is_refused_before_any_work(capsys: Capture, command: list[str], model: str) -> None:
    told = fails(capsys, 1, *command, "--config", LOCAL, "--model", model)
    assert f"--model {model}: no such folder" in told


@pytest.mark.parametrize(("started_with", "words"), [("1", "uv run orl train"), (None, "  orl train")])
def test_hints_start_as_the_program_did(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, started_with: str | None, words: str
) -> None:
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    if started_with:
        monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", started_with)
    assert main(["--help"]) == 0
    assert words in capsys.readouterr().out
    expected = "(see uv run orl --help)" if started_with else "(see orl --help)"
    assert expected in fails(capsys, 2, "xyzzy")


@pytest.mark.usefixtures("no_adapters")
@pytest.mark.parametrize("backend", ["slime", "miles", "local"])
def test_missing_adapter_says_how_to_install_it(capsys: Capture, backend: str) -> None:
    line = fails(capsys, 2, "train", backend, "--config", WHODUNIT)
    assert f"orl-{backend}: not in this environment" in line
    assert "just setup" in line


def test_slime_without_a_config_says_which(capsys: Capture) -> None:
    assert "orl init" in fails(capsys, 2, "train", "slime")


@pytest.fixture
def fake_adapter(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Make a function of tests.launcher.adapters the adapter."""

    def choose(name: str) -> None:
        for module in (trainers, train):
            monkeypatch.setattr(module, "find_trainer", lambda _: adapters.Adapter(getattr(adapters, name)))

    return choose


def test_a_dry_run_shows_the_settings_and_does_nothing(
    capsys: Capture, fake_adapter: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_adapter("train_well")
    monkeypatch.setenv("ORL_CACHE", str(tmp_path / "cache"))
    argv = ["train", "local", "--config", LOCAL, "--dry-run", "--lr", "2e-4", "--wandb-run", "yes", "--", "--x", "1 2"]
    argv[2:2] = ["--rollout-batch-size", "1000000"]
    assert main(argv) == 0
    printed = capsys.readouterr()
    *plan, lacking = printed.out.splitlines()
    assert plan == ["would train playground/GuessNumber with local", "--x", "1 2"]
    assert "ulimit -n" in lacking
    for told in ("0.0002", "would serve playground/GuessNumber", "would make playground/GuessNumber", "\nsum [0] 9474"):
        assert told in printed.err
    assert list(tmp_path.iterdir()) == []


def test_dry_run_finds_the_cached_model_of_the_playground(
    capsys: Capture, fake_adapter: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_adapter("train_well")
    monkeypatch.setenv("ORL_CACHE", str(tmp_path))
    made = checkpoint_folder(load_config(Path(DEFAULT_CONFIG)), tmp_path)
    made.mkdir()
    (made / "warm_start.json").write_text('{"seconds": 1.0}', "utf-8")
    assert main(["train", "local", "--config", LOCAL, "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"would train {made} with local\n"
    assert "would make" not in printed.err


def test_run_that_cannot_start_makes_no_model(
    capsys: Capture, fake_adapter: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_adapter("without_gpus")
    monkeypatch.setenv("ORL_CACHE", str(tmp_path / "cache"))
    assert "0 GPUs" in fails(capsys, 1, "train", "local", "--config", LOCAL)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def training(fake_adapter: Callable[[str], None], tmp_path: Path) -> Training:
    """Return the command line of a run by an adapter, under a name. It needs neither playground nor evaluation."""
    tasks, config = tmp_path / "given.jsonl", tmp_path / "elsewhere.yaml"
    tasks.write_text("", encoding="utf-8")
    trainer = f"{{model: some/model, num_rollout: 3, task_data: {tasks}}}"
    config.write_text(f"environments: {{Org/Env: {{}}}}\nsecrets: {{token: hush}}\ntrainer: {trainer}\n", "utf-8")

    def words(adapter: str, name: str) -> list[str]:
        fake_adapter(adapter)
        return ["train", "local", "--config", str(config), "--name", name]

    return words


def test_a_run_leaves_its_files_and_a_report(capsys: Capture, training: Training) -> None:
    assert main([*training("train_well", "one"), "--", "--flag", "a b"]) == 0
    folder = Path("runs/one")
    assert {"config.json", "metrics.jsonl", "report.html"} <= {path.name for path in folder.iterdir()}
    assert "hush" not in (folder / "config.json").read_text(encoding="utf-8")
    assert (folder / "extra").read_text(encoding="utf-8") == "--flag|a b"
    assert read_object(folder / "config.json")["openreward_run_name"] == "one"
    shown = capsys.readouterr().out
    assert "held-out at step 0/3" in shown
    assert "report.html" in shown


def test_variable_or_wandb_run_names_the_run_at_openreward(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    def name_of(run: str) -> object:
        assert main([*training("train_well", run), "--wandb-run", "of-wandb"]) == 0
        return read_object(Path(f"runs/{run}/config.json"))["openreward_run_name"]

    assert name_of("one") == "of-wandb"
    monkeypatch.setenv("OPENREWARD_RUN_NAME", "the-run")
    assert name_of("two") == "the-run"


@pytest.mark.slow
def test_rollouts_left_by_a_trainer_are_sent(
    capsys: Capture,
    training: Training,
    collector: Collector,
) -> None:
    assert main(training("train_and_leave_rollouts", "one")) == 0
    assert "2 rollouts sent" in capsys.readouterr().out
    assert collector.started() == ["r1", "r2"]
    assert main(training("train_and_leave_rollouts_interrupted", "two")) == 143
    assert f"upload {Path('runs/two')}" in capsys.readouterr().out
    assert len(collector.started()) == 2


@pytest.mark.parametrize(
    "extra", [["--custom-x", "a-hidden-value"], ["--custom-x=a-hidden-value"], ["--x", "YS1oaWRkZW4tdmFsdWU="]]
)
def test_secret_in_trainer_arguments_is_refused_before_writing(
    capsys: Capture,
    training: Training,
    monkeypatch: pytest.MonkeyPatch,
    extra: list[str],
) -> None:
    monkeypatch.setenv("OPENREWARD_API_KEY", "a-hidden-value")
    told = fails(capsys, 1, *training("train_well", "one"), "--", *extra)
    assert "OPENREWARD_API_KEY" in told
    assert "hidden" not in told
    assert not Path("runs").exists()


def test_start_that_fails_leaves_no_folder(capsys: Capture, training: Training) -> None:
    assert "no such model" in fails(capsys, 1, *training("refuse", "four"))
    assert not Path("runs/four").exists()


@pytest.mark.parametrize(
    ("trainer", "code", "told"),
    [
        ("train_until_interrupted", 130, "so far"),
        ("train_until_aborted", 1, "the engine is gone"),
        ("train_until_full", 1, "No space left"),
        ("train_in_error", 1, "8 of 8"),
        ("train_half_in_error", 0, "4 of 8"),
        ("train_without_signal", 1, "all rollouts failed"),
        ("train_on_solved_tasks", 0, "all rollouts succeeded"),
        ("train_unplayed", 1, "rollout.context_tokens"),
    ],
)
def test_end_of_a_run_is_told_and_reported(
    capsys: Capture, training: Training, trainer: str, code: int, told: str
) -> None:
    assert main(training(trainer, "one")) == code
    printed = capsys.readouterr()
    assert told in " ".join((printed.out + printed.err).split())
    page = Path("runs/one/report.html").read_text(encoding="utf-8")
    assert "did not finish" in page or not trainer.startswith("train_until")
    assert told in page or trainer != "train_unplayed"
    assert "The report: runs/one" in printed.out


def test_a_trainers_own_exception_is_kept_and_the_run_reported(training: Training) -> None:
    with pytest.raises(MemoryError, match="the GPU is full"):
        main(training("train_until_broken", "five"))
    assert Path("runs/five/report.html").is_file()


def test_full_disk_for_the_report_leaves_the_end_of_the_run(capsys: Capture, training: Training) -> None:
    assert main(training("train_before_a_full_disk", "one")) == 0
    assert "No report: " in capsys.readouterr().out
    assert json.loads(Path("runs/one/summary.json").read_bytes())["success_after"] == 0.6
    assert "the engine is gone" in fails(capsys, 1, *training("train_until_aborted_before_a_full_disk", "two"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has a device that is full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_full_disk_behind_stdout_is_an_error(training: Training, unbuffered: str) -> None:
    assert main(training("train_half_in_error", "one")) == 0
    program = "from orl_launcher.main import program; program()"
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program, "show", "runs/one"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert "No space left" in line


def test_tasks_that_are_not_there(capsys: Capture, training: Training, tmp_path: Path) -> None:
    assert "orl prepare" in fails(
        capsys, 1, *training("train_well", "four"), "--task-data", str(tmp_path / "none.jsonl")
    )


ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.usefixtures("heeds_hangup")
@pytest.mark.parametrize("number", ENDINGS)
@pytest.mark.parametrize("trainer", ["train_until_signalled", "train_through_a_signal"])
def test_a_signal_gives_its_exit_code_and_the_run_is_reported(
    training: Training,
    number: signal.Signals,
    trainer: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The signal comes inside a weakref callback. A training that finishes all the same is not called interrupted."""
    monkeypatch.setattr(adapters, "SIGNAL", number)
    before = [signal.getsignal(ending) for ending in ENDINGS]
    assert main(training(trainer, "five")) == 128 + number
    assert [signal.getsignal(ending) for ending in ENDINGS] == before
    finished = trainer == "train_through_a_signal"
    summary = json.loads(Path("runs/five/summary.json").read_text(encoding="utf-8"))
    assert ("interrupted" in summary) == (not finished)
    assert ("did not finish" in Path("runs/five/report.html").read_text(encoding="utf-8")) == (not finished)


@pytest.mark.parametrize(("trainer", "count"), [("train_until_signalled", 0), ("save_until_signalled", 1)])
def test_interrupted_run_names_the_command_that_continues(
    capsys: Capture, training: Training, trainer: str, count: int
) -> None:
    words = training(trainer, "five")
    assert main([*words, "--seed", "3", "--", "--flag", "a b"]) == 128 + signal.SIGTERM
    lines = [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines() if "--load" in line]
    continued = [*words[:-2], "--seed", "3", "--load", str(Path("runs/five")), "--", "--flag", "a b"]
    assert [shlex.split(line) for line in lines] == [[*invocation().split(), *continued]] * count


def test_what_is_ignored_stays_ignored(training: Training) -> None:
    """As `nohup` leaves it."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert main(training("train_until_signalled", "six")) == 0
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


WAITS = """
import socket, sys, threading
from pathlib import Path
from orl_launcher.main import program
silent = socket.create_server(("127.0.0.1", 0))
def say():
    silent.accept()[0].recv(1)
    print("asked", flush=True)
threading.Thread(target=say, daemon=True).start()
base_url = f"http://127.0.0.1:{silent.getsockname()[1]}"
Path("c.yaml").write_text(f"environments: {{Org/Env: {{base_url: '{base_url}'}}}}", "utf-8")
sys.argv[1:] = ["prepare", "--config", "c.yaml", "--output", "out/tasks.jsonl"]
program()
"""


@pytest.mark.usefixtures("heeds_hangup")
@pytest.mark.slow
def test_run_without_terminal_keeps_its_exit_code(tmp_path: Path) -> None:
    """SIGHUP comes with a terminal that nothing can be written to any more."""
    owns = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
    program = owns + WAITS.replace('print("asked", flush=True)', 'Path("asked").touch()')
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    ends = time.monotonic() + 60
    while not (tmp_path / "asked").exists():
        assert time.monotonic() < ends
        time.sleep(0.01)
    os.close(ours)
    assert started.wait(60) == 128 + signal.SIGHUP
