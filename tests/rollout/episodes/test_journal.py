"""The journal: on disk when `record` returns, readable after any death, off the event loop."""

import asyncio
import logging
import resource
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import zstandard
from orl_core.errors import OrlError
from orl_rollout.episodes.journal import Journal, frame, journal_files, read_journal

from tests.kit.journalled import only_file, outcome, trajectory_of, write

ROOT = Path(__file__).parents[3]


async def test_any_zstd_tool_shows_lines_of_json(tmp_path):
    with Journal(tmp_path) as journal:
        for key in ("r1", "r2"):
            await journal.record(outcome(key=key))
    with only_file(tmp_path).open("rb") as file:
        shown = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    lines = [msgspec.json.decode(line) for line in shown.splitlines()]
    assert [line["key"] for line in lines] == ["r1", "r2"]
    assert lines[0]["trajectory"]["turns"][0]["observation"] == "<i4:AQAAAAIAAAADAAAA"


async def test_a_file_that_has_grown_large_is_followed_by_the_next(tmp_path):
    keys = [f"r{number}" for number in range(10)]
    with Journal(tmp_path, file_bytes=2_000) as journal:
        for key in keys:
            await journal.record(outcome(key=key))
    files = journal_files(tmp_path)
    assert 2 <= len(files) <= 9
    assert all(file.stat().st_size <= 2_000 for file in files)
    assert [entry.key for entry in read_journal(tmp_path)] == keys


def test_writers_in_threads_and_processes_share_a_folder(tmp_path):
    program = f"""
import asyncio, sys
from tests.kit.journalled import outcome
from orl_rollout.episodes.journal import Journal
async def main(name):
    with Journal({str(tmp_path)!r}) as journal:
        await asyncio.gather(*(journal.record(outcome(name * 10_000, key=f"{{name}}{{n}}")) for n in range(20)))
asyncio.run(main(sys.argv[1]))
"""
    others = [subprocess.Popen([sys.executable, "-c", program, name], cwd=ROOT) for name in "ab"]
    with Journal(tmp_path) as journal:

        async def many(name):
            await asyncio.gather(*(journal.record(outcome(key=f"{name}{number}")) for number in range(20)))

        threads = [threading.Thread(target=asyncio.run, args=(many(name),)) for name in "cd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert [other.wait(60) for other in others] == [0, 0]
    assert sorted(entry.key for entry in read_journal(tmp_path)) == sorted(f"{n}{i}" for n in "abcd" for i in range(20))


def test_writers_on_two_nodes_have_files_of_their_own(tmp_path, monkeypatch):
    """Containers of one image begin at the same time under the same number."""
    for host in ("one", "other"):
        monkeypatch.setattr(socket, "gethostname", lambda host=host: host)
        Journal(tmp_path).close()
    assert [file.name.split("-")[2] for file in journal_files(tmp_path)] == ["one", "other"]


async def test_a_full_disk_says_so_and_leaves_nothing_of_the_record(tmp_path):
    """A limit on the size of files replaces a full disk; the process keeps its own limit otherwise."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Journal(tmp_path) as journal:
        await journal.record(outcome(key="r1"))
        size = only_file(tmp_path).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
        try:
            with pytest.raises(OrlError, match="writing the journal"):
                await journal.record(outcome(key="r2"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert only_file(tmp_path).stat().st_size == size
        await journal.record(outcome(key="r3"))
    assert [entry.key for entry in read_journal(tmp_path)] == ["r1", "r3"]


async def test_a_journal_that_cannot_be_written_or_read_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OrlError, match="opening a journal"):
        Journal(tmp_path / "file" / "run")
    with pytest.raises(OrlError, match="reading the journal"):
        list(read_journal(tmp_path / "nothing.jsonl.zst"))
    with Journal(tmp_path) as journal:
        pass
    with pytest.raises(OrlError, match="writing the journal"):
        await journal.record(outcome())


@pytest.mark.parametrize("line", [b"{}", b"not json", b'{"trajectory": {"turns": [{"observation": "<i4:AAA"}]}}', b""])
def test_a_foreign_record_is_skipped(tmp_path, caplog, line):
    path = write(tmp_path, trajectory_of(key="r1"))
    with path.open("ab") as file:
        file.write(frame(line))
    write(tmp_path, trajectory_of(key="r2"))
    with caplog.at_level(logging.WARNING):
        assert [entry.key for entry in read_journal(tmp_path)] == ["r1", "r2"]
    assert "is skipped" in caplog.text


def test_record_from_before_calls_had_ids_is_read(tmp_path):
    path = write(tmp_path, trajectory_of(key="r1"))
    with zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True) as reader:
        text = reader.read()
    assert b',"id":""' in text
    path.write_bytes(frame(text.replace(b',"id":""', b"").strip()))
    (entry,) = read_journal(tmp_path)
    assert [call.id for turn in entry.trajectory.turns for call in turn.action.calls] == [""]


async def test_event_loop_runs_while_long_trajectories_are_written(tmp_path):
    """Not a measure of time: between the first and the last of the records the loop has taken many turns."""
    long = outcome(ids=tuple(range(40_000)))
    turns = 0

    async def tick():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with Journal(tmp_path) as journal:
        ticker = asyncio.create_task(tick())
        for _ in range(5):
            await journal.record(long)
        ticker.cancel()
    assert turns > 50
