"""Uploads survive a dead platform and the death of the process: at least once, exactly once after a clean stop."""

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from orl_rollout.episodes.events import events_of
from orl_rollout.episodes.uploader import Uploader

from tests.kit.collector import Collector
from tests.kit.journalled import config_of, entry_of, trajectory_of, write

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from orl_rollout.episodes.uploader import Uploader
from tests.kit.journalled import config_of
with Uploader(sys.argv[1], config_of()):
    sys.stdin.read()
"""
TRAJECTORIES = [trajectory_of(key=f"r{number}") for number in range(12)]


def run(folder):
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)], stdin=subprocess.PIPE, cwd=ROOT)


def expected():
    return [event for trajectory in TRAJECTORIES for event in events_of(entry_of(trajectory), config_of())]


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [0, 1, 8])
def test_after_a_death_another_process_goes_on(tmp_path, platform, at_once):
    """The platform is asked, and the process dies before it hears the answer."""
    write(tmp_path, *TRAJECTORIES)
    platform.at_once = at_once
    process = run(tmp_path)
    platform.wait_for(at_once + 1)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    process.communicate()
    platform.open.set()
    with run(tmp_path) as other:
        other.communicate(timeout=60)
    assert other.returncode == 0
    events = platform.events()
    assert [event for number, event in enumerate(events) if event not in events[:number]] == expected()
    again = len(platform.batches) - 2 * len(TRAJECTORIES)
    assert again == 1 + at_once % 2  # the request whose answer was not heard, and the one before it of its rollout
    assert Uploader(tmp_path, config_of()).close(20)
    assert len(platform.batches) == 2 * len(TRAJECTORIES) + again


def test_after_a_clean_stop_nothing_is_sent_twice(tmp_path, platform):
    write(tmp_path, *TRAJECTORIES[:5])
    assert Uploader(tmp_path, config_of()).close(20)
    write(tmp_path, *TRAJECTORIES[5:], name="2")
    for _ in range(2):
        assert Uploader(tmp_path, config_of()).close(20)
    assert platform.events() == expected()


def test_stop_within_a_rollout_sends_it_again_under_the_same_ids(tmp_path, platform):
    platform.answers = [200, 200] + [503] * 100
    write(tmp_path, trajectory_of(turns=50))
    uploader = Uploader(tmp_path, config_of())
    platform.wait_for(3)
    assert not uploader.close(0.3)
    assert not uploader.finished
    platform.answers = []
    assert Uploader(tmp_path, config_of()).close(20)
    assert [len(batch) for batch in platform.batches] == [1, 128, 1, 128, 74]
    assert platform.batches[2:4] == platform.batches[:2]


def test_a_platform_that_is_dead_at_first(tmp_path, monkeypatch, caplog):
    collector = Collector()
    with collector.serving():
        monkeypatch.setenv("OPENREWARD_API_KEY", "or-key-0123456789")
        monkeypatch.setenv("OPENREWARD_API_URL", collector.url)
    write(tmp_path, *TRAJECTORIES)
    with caplog.at_level(logging.WARNING):
        uploader = Uploader(tmp_path, config_of())
        ends = time.monotonic() + 30
        while "they wait for the platform" not in caplog.text and time.monotonic() < ends:
            time.sleep(0.02)
    assert caplog.text.count("they wait for the platform: ClientConnectorError") == 1
    with collector.serving():
        assert uploader.close(30)
    assert collector.events() == expected()


def test_broken_ledger_sends_all_again_under_the_same_ids(tmp_path, platform, caplog):
    write(tmp_path, *TRAJECTORIES)
    assert Uploader(tmp_path, config_of()).close(20)
    (tmp_path / "uploads.json").write_bytes(b'{"\xff": {}}')
    with caplog.at_level(logging.WARNING):
        assert Uploader(tmp_path, config_of()).close(20)
    assert "everything is uploaded again" in caplog.text
    assert platform.events() == expected() * 2


def test_unwritable_ledger_costs_this_process_nothing(tmp_path, platform, caplog):
    write(tmp_path, *TRAJECTORIES)
    platform.at_once = 0
    with caplog.at_level(logging.WARNING):
        uploader = Uploader(tmp_path, config_of())
        platform.wait_for(1)
        (tmp_path / "uploads.json").mkdir()
        platform.open.set()
        platform.wait_for(2 * len(TRAJECTORIES))
        assert uploader.close(20)
    assert caplog.text.count("cannot be noted") == 1
    assert platform.events() == expected()
