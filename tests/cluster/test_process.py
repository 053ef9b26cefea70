"""A trainer's output reaches its log without secrets, whole, also when the one that started it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from orl_cluster.launch.run import process
from orl_rollout.edge import children
from orl_rollout.edge.children import running
from orl_rollout.edge.secrets import Scrubber

SECRET = 'hush-hush "quoted"\nand of two lines'
ENVIRONMENT = {**os.environ, "TOKEN": SECRET, "OTHER": "hush-hush"}
SAYS = "import os, sys, time; out = sys.stdout.buffer; word = os.environ['TOKEN']; "


def logged(folder: Path, program: str, hidden: tuple[str, ...] = ("TOKEN", "OTHER")) -> bytes:
    log = folder / "trainer.log"
    assert process.run([sys.executable, "-c", SAYS + program], ENVIRONMENT, log=log, hidden=hidden) == 0
    return log.read_bytes()


def test_a_trainer_that_prints_its_environment_leaves_no_secret_in_its_log(tmp_path: Path):
    said = logged(tmp_path, "import json; print(word, repr(word), json.dumps(dict(os.environ)), os.environ['OTHER'])")
    assert b"hush-hush" not in said
    assert said.count(b"[secret]") >= 4


@pytest.mark.parametrize("pause", [0.0, 0.01])
def test_a_secret_is_found_however_it_is_cut_in_pieces(tmp_path: Path, pause: float):
    program = (
        "text = 'before ' + word + ' between ' + os.environ['OTHER'] + ' after'\n"
        f"for character in text: out.write(character.encode()); out.flush(); time.sleep({pause})"
    )
    assert logged(tmp_path, program) == b"before [secret] between [secret] after"


def test_everything_else_arrives_byte_by_byte_and_in_order(tmp_path: Path):
    said = bytes(range(256)) * 4000  # a megabyte, most of it no UTF-8
    assert logged(tmp_path, "out.write(bytes(range(256)) * 4000); out.flush(); os.write(2, b'last')") == said + b"last"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has a device that is full")
def test_full_disk_behind_the_log_does_not_end_the_trainer(tmp_path: Path):
    program = "print(*range(100_000), sep='\\n', flush=True); open(sys.argv[1], 'w').write('whole')"
    done = tmp_path / "done"
    command = [sys.executable, "-c", SAYS + program, str(done)]
    with running(command, ENVIRONMENT, log=Path("/dev/full"), hidden=()) as trainer:
        assert trainer.wait(60) == 0
    assert done.read_text(encoding="utf-8") == "whole"


def test_working_folder_is_no_secret(tmp_path: Path):
    log = tmp_path / "trainer.log"
    environment = {**os.environ, "PWD": "/a/working/folder", "DB_PWD": "hush-hush"}
    program = "import os; print(os.environ['PWD'], os.environ['DB_PWD'], flush=True)"
    assert process.run([sys.executable, "-c", program], environment, log=log) == 0
    assert log.read_text(encoding="utf-8") == "/a/working/folder [secret]\n"


def test_what_waits_is_written_so_that_a_log_can_be_followed(tmp_path: Path):
    """The trainer continues only when its own words have reached the log."""
    log = tmp_path / "trainer.log"
    program = (
        "os.write(1, b'no line end'); ends = time.monotonic() + 20\n"
        f"while b'no line end' not in open({str(log)!r}, 'rb').read():\n"
        "    assert time.monotonic() < ends; time.sleep(0.05)"
    )
    assert logged(tmp_path, program) == b"no line end"


def test_a_killed_launcher_loses_nothing_of_the_log(tmp_path: Path):
    """The trainer outlives the launcher, writes on, and its words still arrive scrubbed."""
    log = tmp_path / "trainer.log"
    trainer = SAYS + (
        "print('begun', flush=True)\n"
        "launcher = os.getppid()\n"
        "while os.getppid() == launcher: time.sleep(0.05)\n"
        "print('alone', word, 'ended', flush=True)"
    )
    launcher = (
        "import os, sys; from pathlib import Path; from orl_cluster.launch.run import process; "
        f"process.run([sys.executable, '-c', {trainer!r}], os.environ, log=Path({str(log)!r}), hidden=['TOKEN'])"
    )
    started = subprocess.Popen([sys.executable, "-c", launcher], env=ENVIRONMENT)
    await_text(log, b"begun")
    started.send_signal(signal.SIGKILL)
    started.wait(10)
    await_text(log, b"ended")
    assert log.read_bytes() == b"begun\nalone [secret] ended\n"


def await_text(log: Path, text: bytes) -> None:
    ends = time.monotonic() + 20
    while not log.is_file() or text not in log.read_bytes():
        assert time.monotonic() < ends, f"{text!r} never reached the log"
        time.sleep(0.05)


def test_a_cut_never_goes_through_an_echo_nor_through_the_beginning_of_one():
    scrubber = Scrubber(["abcd", "abcdefgh"])
    for text in ("xxxxabcd", "xxxxabcdefgh", "abcdabcdabcdefg", "x" * 40):
        for at in range(len(text) + 1):
            cut = scrubber.settled(text[:at])
            assert scrubber.scrub(text[:cut]) + scrubber.scrub(text[cut:]) == scrubber.scrub(text), (text, at)


@pytest.mark.slow
def test_the_rest_of_a_group_has_time_to_end_when_its_leader_is_gone(tmp_path: Path):
    """A child that the leader leaves behind puts away what it has before it ends."""
    begun, put_away = tmp_path / "begun", tmp_path / "put away"
    child = (
        "import pathlib, sys, time\n"
        "try:\n"
        f"    pathlib.Path({str(begun)!r}).touch(); time.sleep(60)\n"
        "except KeyboardInterrupt:\n"
        f"    time.sleep(1); pathlib.Path({str(put_away)!r}).touch()"
    )
    leader = (
        f"import os, subprocess; subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.DEVNULL)\n"
        f"while not os.path.exists({str(begun)!r}): time.sleep(0.05)"
    )
    logged(tmp_path, leader)
    assert put_away.exists()


def test_ignored_sigint_is_not_waited_for(tmp_path: Path):
    """A script ignores SIGINT for what it starts with `&`, and the trainer inherits that."""
    log, begins = tmp_path / "trainer.log", 0.0

    def end_it() -> None:
        nonlocal begins
        if log.is_file() and b"begun" in log.read_bytes():
            begins = time.monotonic()
            raise TimeoutError

    command = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(60)"]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(TimeoutError):
            process.run(command, ENVIRONMENT, log=log, check=end_it)
    finally:
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - begins < children.END_SECONDS


def test_a_group_that_heeds_nothing_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(children, "END_SECONDS", 0.5)
    stubborn = "import signal, time; [signal.signal(n, signal.SIG_IGN) for n in (2, 15)]; print(1, flush=True); "
    begin = f"import subprocess; subprocess.Popen([sys.executable, '-c', {stubborn + 'time.sleep(60)'!r}]); "
    started = subprocess.Popen(
        [sys.executable, "-c", SAYS + begin + stubborn + "time.sleep(60)"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert started.stdout is not None
    assert [started.stdout.readline() for _ in range(2)] == [b"1\n", b"1\n"]
    with children.ended(started, (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)):
        pass
    assert started.returncode == -signal.SIGKILL
    assert started.stdout.read() == b"", "the child, which held the pipe too, is gone"
    started.stdout.close()
