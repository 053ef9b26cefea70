"""Uploads from the journal against a platform on loopback: what is sent, when, and that the rest waits for nothing."""

import logging
from pathlib import Path

import msgspec
import pytest
from msgspec import structs
from orl_core.errors import ConfigError
from orl_core.trajectory import StopReason
from orl_rollout.episodes.events import events_of
from orl_rollout.episodes.journal import Journal, frame, read_journal
from orl_rollout.episodes.uploader import Uploader, replace_lost, unsent, uploads

from tests.kit.journalled import config_of, outcome, trajectory_of, write

KEY = "or-key-0123456789"


def upload(folder, config=None, seconds=20.0):
    """Open and close an uploader of `folder`; it."""
    uploader = Uploader(folder, config or config_of())
    assert uploader.close(seconds)
    return uploader


def trajectories(*keys):
    return [trajectory_of(key=key) for key in keys]


@pytest.mark.slow
async def test_what_is_recorded_is_sent_while_the_run_goes_on(tmp_path, platform):
    with Uploader(tmp_path, config_of()), Journal(tmp_path, file_bytes=2_000) as journal:
        for number in range(5):
            await journal.record(outcome(key=f"r{number}"))
            platform.wait_for(2 * (number + 1))
    assert platform.started() == [f"r{number}" for number in range(5)]
    assert len(platform.finished()) == 5
    assert {headers["x-api-key"] for headers in platform.headers} == {KEY}


async def test_replaced_attempt_is_not_uploaded(tmp_path, platform):
    with Journal(tmp_path) as journal:
        await journal.record(outcome("the first"), replaced=True)
        await journal.record(outcome("the second"))
    assert upload(tmp_path).counts.sent == 1
    assert "the second" in str(platform.events())
    assert "the first" not in str(platform.events())
    assert not unsent(tmp_path)
    write(tmp_path, structs.replace(trajectory_of(key="lost"), stop_reason=StopReason.ERROR))
    assert upload(tmp_path).counts.sent == 1
    known = {event["eventId"] for event in platform.events()}
    replace_lost(tmp_path)
    assert upload(tmp_path).counts.sent == 1
    assert {event["eventId"] for event in platform.events()} == known


def test_long_rollouts_are_cut_into_requests_in_order(tmp_path, platform):
    write(tmp_path, trajectory_of(turns=50))
    assert upload(tmp_path).counts.sent == 1
    assert [len(batch) for batch in platform.batches] == [1, 128, 74]
    indices = [event["index"] for event in platform.events() if event["eventType"] == "message"]
    assert indices == list(range(201))


def test_large_rollouts_are_cut_into_requests_of_a_megabyte(tmp_path, platform):
    write(tmp_path, trajectory_of("x" * 300_000, turns=2), trajectory_of("x" * 2_000_000))
    assert upload(tmp_path).counts.sent == 2
    sizes = [[len(msgspec.json.encode(event)) for event in batch] for batch in platform.batches]
    assert all(sum(batch) <= 1 << 20 or len(batch) == 1 for batch in sizes)
    assert len(sizes) < sum(map(len, sizes))
    assert platform.events() == [event for entry in read_journal(tmp_path) for event in events_of(entry, config_of())]


def test_a_secret_is_not_uploaded(tmp_path, platform):
    write(tmp_path, structs.replace(trajectory_of(), contains_secret=True))
    assert (upload(tmp_path).counts.withheld, platform.asked) == (1, 0)


@pytest.mark.slow
def test_faults_and_limits_are_tried_again(tmp_path, platform):
    platform.answers = [500, (429, {"Retry-After": "1"}), 200, 401, 402, 307, 404]
    write(tmp_path, *trajectories("r1", "r2"))
    assert upload(tmp_path, seconds=60).counts.sent == 2
    assert platform.started() == ["r1", "r2"]
    assert len(platform.finished()) == 2


def test_refusals_are_logged_once_and_left_out(tmp_path, platform, caplog):
    platform.answers = [400, 400, 200, 422, 200, 200]
    write(tmp_path, *trajectories("r1", "r2", "r3", "r4"))
    with caplog.at_level(logging.WARNING):
        uploader = upload(tmp_path)
    assert (uploader.counts.refused, uploader.counts.sent) == (3, 1)
    assert platform.started() == ["r3", "r4"]
    assert caplog.text.count("HTTP 400") == caplog.text.count("HTTP 422") == 1
    assert upload(tmp_path).counts.sent == 0
    assert platform.asked == 6


def test_what_is_broken_or_foreign_is_left_out(tmp_path, platform, caplog):
    path = write(tmp_path, *trajectories("r1", "r2"))
    job = trajectory_of().job
    elsewhere = structs.replace(
        trajectory_of(), job=structs.replace(job, task=structs.replace(job.task, env_name="c/d"))
    )
    whole = path.read_bytes()
    path.write_bytes(frame(b"{}") + whole[:-9])  # a single byte may be what the next frame begins with
    write(tmp_path, elsewhere, trajectory_of(key="r3"))
    assert upload(tmp_path).counts.broken == 1
    assert platform.started() == ["r1", "r3"]


@pytest.mark.slow
async def test_a_slow_platform_slows_no_rollout(tmp_path, platform):
    platform.at_once = 0
    uploader = Uploader(tmp_path, config_of())
    with Journal(tmp_path) as journal:
        await journal.record(outcome(key="r0"))
        platform.wait_for(1)
        for number in range(1, 100):
            await journal.record(outcome(key=f"r{number}"))
    assert (platform.asked, len(list(read_journal(tmp_path)))) == (1, 100)
    assert not uploader.close(0.1)


def test_one_uploader_at_a_time_and_the_next_goes_on(tmp_path, platform):
    write(tmp_path, *trajectories("r1"))
    holder = Uploader(tmp_path, config_of())
    platform.wait_for(2)
    other = Uploader(tmp_path, config_of())
    write(tmp_path, *trajectories("r2"))
    platform.wait_for(4)
    assert holder.close(20)
    write(tmp_path, *trajectories("r3"), name="2")
    assert other.close(20)
    assert (holder.counts.sent, other.counts.sent) == (2, 1)
    assert platform.started() == ["r1", "r2", "r3"]


def test_switched_off_it_does_nothing(tmp_path, platform):
    write(tmp_path, *trajectories("r1"))
    with Uploader(tmp_path, config_of(rollout={"upload": False})):
        pass
    assert platform.asked == 0
    assert [path.name for path in tmp_path.iterdir()] == ["journal-1.jsonl.zst"]
    assert upload(tmp_path).counts.sent == 1


@pytest.mark.parametrize(
    ("upload", "base_url", "key", "expected"),
    [
        (None, None, KEY, True),
        (None, None, "", False),
        (None, "http://127.0.0.1:9", KEY, False),
        (True, "http://127.0.0.1:9", KEY, True),
        (False, None, KEY, False),
    ],
)
def test_when_rollouts_are_uploaded(monkeypatch, upload, base_url, key, expected):
    monkeypatch.setenv("OPENREWARD_API_KEY", key)
    config = config_of(rollout={"upload": upload}, environments={"a/b": {"base_url": base_url}})
    assert uploads(config, "a/b") is expected


def test_uploads_without_a_key_are_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", "")
    with pytest.raises(ConfigError, match="OPENREWARD_API_KEY"):
        Uploader(tmp_path, config_of(rollout={"upload": True}))


def test_no_folder_has_nothing_unsent(tmp_path: Path):
    assert not unsent(tmp_path / "gone")
