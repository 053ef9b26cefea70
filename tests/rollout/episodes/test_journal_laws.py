"""Laws of the journal: any trajectory comes back exactly, and what is torn costs nothing but itself."""

import io
import itertools
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.messages import Message, TextBlock
from orl_core.text import clean
from orl_core.trajectory import Generation
from orl_rollout.edge.secrets import without_ids
from orl_rollout.episodes.journal import (
    MAGIC,
    decode_entry,
    encode_entry,
    frame,
    pack_ids,
    pack_logprobs,
    read_frames,
    read_journal,
    unpack,
)

from tests.kit.journalled import entry_of, trajectory_of, write
from tests.kit.strategies import finite, json_values, trajectories, trees

HOSTILE = st.text(st.characters() | st.sampled_from('\ud800\udfff\0\u2028\x1b"\\\n{'), max_size=20)
IDS = st.lists(st.integers(0, 2**31 - 1) | st.sampled_from([0, 2**31 - 1]), max_size=20)
EXTREME = finite | st.sampled_from([-0.0, 5e-324, -1e-45])
LOGPROBS = st.lists(EXTREME | st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20)
PROBABLE = LOGPROBS.map(lambda row: [-min(abs(number), 3.4e38) for number in row])  # what an engine may return


def exactly(numbers):
    return [struct.pack("<d", number) for number in numbers]


@given(PROBABLE)
def test_logprobs_come_back_to_the_bit(logprobs):
    packed = pack_logprobs(logprobs)
    assert exactly(unpack(packed)) == exactly(logprobs)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_single_precision_takes_four_bytes(logprobs):
    assert pack_logprobs(logprobs).startswith("<f4:")


@given(IDS)
def test_ids_come_back(ids):
    assert unpack(pack_ids(ids)) == tuple(ids)


@given(trajectories | trees, PROBABLE, HOSTILE, st.dictionaries(HOSTILE.map(clean), json_values, max_size=3))
def test_any_trajectory_comes_back(trajectory, logprobs, text, sampling):
    generation = Generation(token_ids=tuple(range(len(logprobs))), logprobs=tuple(logprobs), finish_reason="stop")
    given_turns = tuple(
        structs.replace(turn, generations=(*turn.generations, structs.replace(generation, extras={"x": object()})))
        for turn in trajectory.turns
    )
    turns = tuple(structs.replace(turn, generations=(*turn.generations, generation)) for turn in trajectory.turns)
    job = structs.replace(trajectory.job, sampling=sampling)
    hostile = structs.replace(
        trajectory, job=job, turns=given_turns, messages=(Message(role="user", content=(TextBlock(text=text),)),)
    )
    expected = structs.replace(
        hostile, turns=turns, messages=(Message(role="user", content=(TextBlock(text=clean(text)),)),)
    )
    line = encode_entry(entry_of(hostile))
    assert line.count(b"\n") == 1
    assert decode_entry(line) == entry_of(expected)
    assert decode_entry(line, ids=False) == entry_of(without_ids(expected))


@pytest.mark.slow
def test_cut_last_record_leaves_the_others_and_the_next(tmp_path):
    first = write(tmp_path, trajectory_of(key="r1"), trajectory_of(key="r2")).read_bytes()
    last = frame(encode_entry(entry_of(trajectory_of(key="r3", ids=tuple(range(50))))))
    third = frame(encode_entry(entry_of(trajectory_of(key="r4"))))
    path = tmp_path / "journal-1.jsonl.zst"
    for cut in range(len(last)):
        path.write_bytes(first + last[:cut])
        assert [entry.key for entry in read_journal(path)] == ["r1", "r2"], cut
        path.write_bytes(first + last[:cut] + third)
        assert [entry.key for entry in read_journal(path)] == ["r1", "r2", "r4"], cut


@given(st.lists(st.binary(max_size=200), max_size=6), st.data())
def test_what_is_torn_anywhere_costs_itself_alone(contents, data):
    """Frames with torn ones and rubbish between them, the four bytes of a frame's beginning among it."""
    file, whole = b"", []
    for content in contents:
        made = frame(content)
        kind = data.draw(st.sampled_from(["whole", "torn", "rubbish"]))
        if kind == "whole":
            whole.append((len(file), len(file) + len(made), content))
            file += made
        elif kind == "torn":
            file += made[: data.draw(st.integers(0, len(made) - 1))]
        else:
            file += data.draw(st.binary(max_size=20)) + MAGIC * data.draw(st.integers(0, 2))
    found = [(one.start, one.end, one.content) for one in read_frames(io.BytesIO(file))]
    assert found == whole


def test_next_frame_does_not_complete_a_torn_one():
    torn = next(made for number in itertools.count() if (made := frame(b"%d" % number)).endswith(MAGIC[:1]))
    assert [one.content for one in read_frames(io.BytesIO(torn[:-1] + frame(b"next")))] == [b"next"]
    assert [one.content for one in read_frames(io.BytesIO(torn + frame(b"next")))][1:] == [b"next"]


class Growing(io.BytesIO):
    """A file to which `more` is written as soon as a reader has met its end."""

    more = b""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data and self.more:
            place = self.tell()
            self.write(self.more)
            self.more = b""
            self.seek(place)
        return data


def test_a_frame_that_is_being_written_is_not_passed_over():
    whole, half, next_one = (frame(content) for content in (b"first", b"second", b"third"))
    file = Growing(whole + half[:-3])
    file.more = half[-3:] + next_one
    assert [one.content for one in read_frames(file, end=len(whole + half) - 3)] == [b"first"]
    assert [one.content for one in read_frames(file, len(whole))] == [b"second", b"third"]


@given(st.binary(max_size=100), st.data())
def test_a_changed_byte_is_not_read_as_another_content(content, data):
    made = bytearray(frame(content))
    place = data.draw(st.integers(0, len(made) - 1))
    made[place] ^= data.draw(st.integers(1, 255))
    assert all(one.content == content for one in read_frames(io.BytesIO(bytes(made))))


@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_frames_longer_than_what_is_read_at_once(before, size):
    rubbish, content = MAGIC[:3] * (before // 3), b"".join(struct.pack("<d", math.sin(n)) for n in range(size // 8))
    (one,) = read_frames(io.BytesIO(rubbish + frame(content)))
    assert (one.start, one.content) == (len(rubbish), content)
