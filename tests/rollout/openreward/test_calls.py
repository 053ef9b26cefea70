"""Calls on a real OpenReward server: what comes back whole, what is a fault, and that no tool is run twice."""

import json
from itertools import cycle, pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orl_core.errors import SessionAnswerError, SessionError
from orl_core.messages import FailureKind, ImageBlock, text_of
from orl_rollout.edge.http import decode
from orl_rollout.logs import Sparing
from orl_rollout.openreward import OpenRewardClient, session
from orl_rollout.openreward.transport import ANSWER_BYTES, CutJson, EventReader
from orl_rollout.openreward.wire import result_of
from orl_testing import environments as envs

from tests.kit.answering import Answering
from tests.kit.episodes import Playing, config_of, task_of


async def test_results_carry_reward_and_end(gallery):
    async with Playing("Echo", gallery.url) as play:
        result = await play.call("echo", text="ä  b")
        assert (text_of(result.content), result.reward, result.finished) == ("ä  b", 0.25, False)
        result = await play.call("finish")
        assert (result.reward, result.finished, result.failure) == (1.0, True, None)
        with pytest.raises(SessionError, match="episode_finished"):
            await play.call("echo", text="more")
    async with Playing("Terminal", gallery.url) as play:
        assert (await play.call("look")).reward is None


async def test_indented_output_arrives_whole(gallery):
    async with Playing("Indented", gallery.url) as play:
        for size in (4_095, 20_002):
            assert text_of((await play.call("show", size=size)).content) == f"{'x':>{size}}"


async def test_text_and_metadata_become_valid_unicode():
    body = rb'{"ok": true, "output": {"blocks": [{"type": "text", "text": "a \uD800"}], "metadata": {"\ud800": 1}}}'

    class Torn(Answering):
        answers = {"/call": (200, [(b"content-type", b"application/json")], body)}

    with envs.serve(envs.Echo, wrap=Torn) as served:
        async with Playing("Echo", served.url) as play:
            result = await play.call("echo", text="a")
    assert (text_of(result.content), result.metadata) == ("a \ufffd", {"\ufffd": 1})


def test_metadata_is_an_object_and_unknown_blocks_are_refused():
    for sent, kept in ((None, {}), ([1], {"value": [1]})):
        assert result_of("look", {"ok": True, "output": {"metadata": sent, "newer": 1}}, 0.0).metadata == kept
    with pytest.raises(msgspec.ValidationError):
        result_of("look", {"ok": True, "output": {"blocks": [{"type": "video", "data": ""}]}}, 0.0)


async def test_the_models_mistakes_are_results(gallery):
    async with Playing("Echo", gallery.url) as play:
        result = await play.call("no_such_tool")
        assert result.failure is FailureKind.UNKNOWN_TOOL
        result = await play.call("echo", wrong=1)
        assert result.failure is FailureKind.INVALID_ARGUMENTS
        assert "text" in text_of(result.content)


async def test_failing_tool_is_a_fault_with_its_words(gallery):
    async with Playing("Failing", gallery.url) as play:
        with pytest.raises(SessionError, match=r"^calling tool `fail` of gallery/Failing: (?s:.*)on fire"):
            await play.call("fail")


async def test_an_image_is_kept(gallery):
    async with Playing("Picture", gallery.url) as play:
        _, image = (await play.call("draw")).content
    assert image == ImageBlock(data=envs.PIXEL, mime_type="image/png")


@given(st.lists(st.text(alphabet=" \tab:\u2028ä", max_size=8), max_size=5), st.lists(st.integers(0, 200), max_size=8))
def test_events_are_the_same_however_the_stream_is_cut(data, cuts):
    stream = ": hello\r\n\r\n" + "".join(f"event: chunk\r\ndata: {text}\r\n\r\n" for text in data) + "event: end\n\n"
    raw = stream.encode()
    bounds = sorted({0, len(raw), *(cut % len(raw) for cut in cuts)})
    reader = EventReader()
    events = [(name, bytes(said).decode()) for a, b in pairwise(bounds) for name, said in reader.feed(raw[a:b])]
    assert events == [*(("chunk", text) for text in data), ("end", "")]


@pytest.mark.parametrize(("name", "status", "seconds"), [("Echo", 401, 10.0), ("Indented", 503, 0.001)])
async def test_sessions_that_cannot_be_closed_are_one_warning(
    name: str, status: int, seconds: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(session, "warnings", Sparing(session.logger))  # others warned of this environment

    class Odd(Answering):
        answers = {"/delete": (status, [], b""), "/delete_session": (status, [], b"")}

    with envs.serve(envs.Echo, envs.Indented, wrap=Odd) as served:
        async with OpenRewardClient(config_of(name, served.url, call_timeout=seconds)) as client:
            for number in range(3):
                opened = client.session(task_of(name, number))
                await opened.open(task_of(name, number))
                await opened.close()
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


LONG = 'ä \\ " \u2028' * 600_000


def streamed(reply: dict[str, Any]) -> type[Answering]:
    """Return a server that answers calls with `reply` as the SDK's does, in small parts of an event stream."""
    text = json.dumps(reply)
    parts = "".join(f"event: chunk\ndata: {text[at : at + 4096]}\n\n" for at in range(0, len(text), 4096))
    stream = f"event: task_id\ndata: 1\n\n{parts}event: end\ndata: \n\n".encode()

    class Streaming(Answering):
        answers = {"/call": (200, [(b"content-type", b"text/event-stream")], stream)}

    return Streaming


async def test_text_above_the_limit_is_cut_and_its_reward_kept(caplog: pytest.LogCaptureFixture):
    output = {"blocks": [{"type": "text", "text": LONG}], "reward": 0.25, "metadata": {"a": "b"}, "finished": True}
    with envs.serve(envs.Echo, wrap=streamed({"ok": True, "output": output})) as served:
        async with Playing("Echo", served.url) as play:
            for _ in range(2):
                result = await play.call("echo", text="a")
                assert (result.reward, result.finished, result.metadata) == (0.25, True, {"a": "b"})
                assert ANSWER_BYTES // 8 < len(text_of(result.content)) < ANSWER_BYTES
                assert LONG.startswith(text_of(result.content).rstrip("\ufffd"))
    assert len([record for record in caplog.records if "/call" in record.getMessage()]) == 1


async def test_image_above_the_limit_is_an_error():
    body = b'{"ok": true, "output": {"blocks": [{"type": "image", "data": "%s"}]}}' % (
        b"A" * (ANSWER_BYTES + (1 << 19))
    )

    class Large(Answering):
        answers = {"/call": (200, [(b"content-type", b"application/json")], body)}

    with envs.serve(envs.Echo, wrap=Large) as served:
        async with Playing("Echo", served.url) as play:
            with pytest.raises(SessionAnswerError, match="larger than"):
                await play.call("echo", text="a")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "error", "type", "texts", "\u20ac"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def same(cut: object, whole: object, name: str = "") -> bool:
    """Return whether `cut` is `whole`, but for texts, which may end earlier."""
    if isinstance(whole, str) and isinstance(cut, str) and name == "text":
        return whole.startswith(cut.rstrip("\ufffd"))
    if isinstance(whole, dict) and isinstance(cut, dict):
        return [*cut] == [*whole] and all(same(cut[key], whole[key], key) for key in whole)
    if isinstance(whole, list) and isinstance(cut, list):
        return len(cut) == len(whole) and all(map(same, cut, whole))
    return type(cut) is type(whole) and cut == whole


@given(JSON, st.booleans(), st.integers(0, 200), st.lists(st.integers(1, 9), min_size=1))
@example({"texts": {"text": "\x07\U00010000"}}, True, 26, [9])
def test_cut_json_differs_in_long_texts_alone(value: object, ascii_only: bool, most: int, sizes: list[int]):
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    cut, at = CutJson(most), 0
    for size in cycle(sizes):
        cut.feed(data[at : at + size])
        at += size
        if at >= len(data):
            break
    assert cut.is_cut is (cut.body != data)
    assert not (cut.is_cut and len(data) <= most)
    assert same(decode(cut.body, valid=True), decode(data))
