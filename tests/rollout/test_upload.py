"""Uploads against a collector on loopback: the platform's form, repeats, refusals, and an end in bounded time."""

import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from orl_core.config import decode_config
from orl_core.errors import ConfigError
from orl_core.messages import Action, FailureKind, ParseFailure, TextBlock, ToolCall, ToolResult
from orl_core.task import Task
from orl_core.trajectory import Generation, Job, StopReason, Trajectory, Turn
from orl_rollout.journal import Entry
from orl_rollout.upload import Uploader, uploads

KEY = "or-key-0123456789"


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", KEY)


class Collector:
    """What was posted; `statuses` are given in turn, then 200."""

    def __init__(self):
        self.batches = []
        self.headers = []
        self.statuses = []
        self.pause = 0.0

    def events(self):
        return [event for batch in self.batches for event in batch]


@contextmanager
def collecting(monkeypatch):
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            time.sleep(collector.pause)
            status = collector.statuses.pop(0) if collector.statuses else 200
            if status == 200:
                assert self.path == "/v1/rollouts"
                collector.headers.append(dict(self.headers))
                collector.batches.append(msgspec.json.decode(body)["events"])
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format, *args):  # noqa: A002 - the name of the base
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("OPENREWARD_API_URL", f"http://127.0.0.1:{server.server_port}")
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def config_of(upload=None, base_url=None, secrets=None):
    tree = {
        "environments": {"a/b": {"base_url": base_url}},
        "rollout": {"upload": upload},
        "trainer": {"model": "some/model", "lr": 1e-6},
        "openreward_run_name": "my-run",
        "secrets": secrets or {},
    }
    return decode_config(tree, "test")


def entry_of(text="hello", key="r1", turns=1, *, leaked=False, calls=None):
    calls = calls if calls is not None else (ToolCall(name="say", arguments={"text": text}),)
    results = tuple(ToolResult(name="say", content=(TextBlock(text=text),), reward=0.5) for _ in calls)
    generation = Generation(ids=(1,), logprobs=(-1.0,), finish_reason="stop")
    action = Action(text=text, reasoning="hm", calls=calls)
    turn = Turn(observation=(1,), generations=(generation,), action=action, results=results)
    task = Task(env_name="a/b", deployment_name="a/b", environment_name="b", index=3, task_spec={"n": 1, "none": None})
    trajectory = Trajectory(
        job=Job(task=task, key=key, sampling={"temperature": 0.7}),
        turns=(turn,) * turns,
        stop_reason=StopReason.FINISHED,
        leaked=leaked,
        seconds=2.5,
    )
    return Entry(key=key, time=1.7e9, reward=0.5, success=False, step=9, trajectory=trajectory)


def test_a_rollout_arrives_in_the_platforms_form(monkeypatch):
    with collecting(monkeypatch) as collector:
        with Uploader(config_of()) as uploader:
            uploader.submit(entry_of("nul\0 and \ud800"))
        assert uploader.counts.sent == 1
    assert collector.headers[0]["x-api-key"] == KEY
    (start,), rest = collector.batches
    *messages, update, last = rest
    assert start == {
        "eventType": "rollout",
        "eventId": start["eventId"],
        "timestamp": 1_700_000_000_000,
        "runName": "my-run",
        "rolloutName": "r1",
        "environment": "a/b",
        "variant": "b",
        "split": "train",
        "task_spec": {"n": 1},
        "run_info": {"model_name": "some/model", "run_type": "train", "lr": 1e-6, "framework": "orl"},
    }
    assert [(m["type"], m["content"]) for m in messages] == [
        ("reasoning", "hm"),
        ("assistant_message", "nul and \ufffd"),
        ("tool_call", '{"text":"nul and \ufffd"}'),
    ]
    assert (messages[2]["name"], messages[2]["callId"]) == ("say", "0.0")
    assert update["eventType"] == "rollout_update"
    assert update["rollout_info"] == {
        "task_index": 3,
        "current_step": 9,
        "temperature": 0.7,
        "max_tokens": 4096,
        "duration_ms": 2500,
        "harness": "orl",
    }
    assert (last["type"], last["callId"], last["reward"], last["isFinished"]) == ("tool_result", "0.0", 0.5, True)
    assert last["metadata"] == {"reward": 0.5, "success": False, "stop_reason": "finished"}
    assert [m["index"] for m in [*messages, last]] == [0, 1, 2, 3]
    assert {m["rolloutEventId"] for m in [*messages, last]} == {start["eventId"]}


def test_a_repeat_has_the_same_ids_and_another_rollout_others(monkeypatch):
    with collecting(monkeypatch) as collector, Uploader(config_of()) as uploader:
        for key in ("r1", "r1", "r2"):
            uploader.submit(entry_of(key=key))
    ids = [event["eventId"] for event in collector.events() if event["eventType"] != "rollout_update"]
    assert ids[:5] == ids[5:10]
    assert len(set(ids)) == 10


def test_long_rollouts_are_cut_into_batches_in_order(monkeypatch):
    with collecting(monkeypatch) as collector, Uploader(config_of()) as uploader:
        uploader.submit(entry_of(turns=50))
    assert [len(batch) for batch in collector.batches] == [1, 128, 73]
    indices = [event["index"] for event in collector.events() if event["eventType"] == "message"]
    assert indices == list(range(200))


def test_what_could_not_be_parsed_is_what_the_model_wrote(monkeypatch):
    failure = ParseFailure(kind=FailureKind.INVALID_JSON, message="bad", text="{oops")
    with collecting(monkeypatch) as collector, Uploader(config_of()) as uploader:
        uploader.submit(entry_of(text="", calls=(failure,)))
    assert ("assistant_message", "{oops") in [(e.get("type"), e.get("content")) for e in collector.events()]


def test_a_secret_is_not_uploaded(monkeypatch):
    with collecting(monkeypatch) as collector:
        with Uploader(config_of(secrets={"pass": "correct horse"})) as uploader:
            uploader.submit(entry_of(leaked=True))
            uploader.submit(entry_of("the correct horse"))
            uploader.submit(entry_of(f"key {KEY}"))
        assert uploader.counts.refused == 3
    assert collector.batches == []


def test_faults_are_tried_again_and_refusals_are_not(monkeypatch, caplog):
    with collecting(monkeypatch) as collector:
        collector.statuses = [500, 200, 200, 400]
        with Uploader(config_of()) as uploader:
            uploader.submit(entry_of(key="r1"))
            uploader.submit(entry_of(key="r2"))
        assert (uploader.counts.sent, uploader.counts.failed) == (1, 1)
    assert len(collector.batches) == 2
    assert "HTTP 400" in caplog.text


def test_a_dead_or_slow_platform_holds_nobody_up(monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_URL", "http://127.0.0.1:9")
    started = time.monotonic()
    uploader = Uploader(config_of())
    for number in range(1_200):
        uploader.submit(entry_of(key=f"r{number}"))
    assert uploader.counts.dropped > 0
    assert time.monotonic() - started < 10
    uploader.close(0.2)
    assert time.monotonic() - started < 15


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
    assert uploads(config_of(upload, base_url), "a/b") is expected


def test_uploads_without_a_key_are_refused_at_the_start(monkeypatch):
    monkeypatch.setenv("OPENREWARD_API_KEY", "")
    with pytest.raises(ConfigError, match="OPENREWARD_API_KEY"):
        Uploader(config_of(upload=True))
