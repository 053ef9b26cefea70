"""`orl view`: every kind of run, read-only, behind its token, and deaf to what episodes say."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from orl_core.errors import ConfigError
from orl_launcher.main import main
from orl_launcher.view.catalog import Catalog
from orl_launcher.view.server import HEADERS, Viewer

from tests.kit.journalled import trajectory_of
from tests.kit.pages import HOSTILE, Outline
from tests.launcher.synthetic import make_run
from tests.launcher.view.runs import (
    TOKEN,
    add,
    branching,
    make_cluster_run,
    make_hostile,
    make_rollouts,
    viewed,
)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    make_run(root / "local", steps=2)
    make_cluster_run(root / "slime")
    make_rollouts(root / "rollouts")
    add(make_rollouts(root / "agent"), branching())
    (root / "empty").mkdir()
    return root


def files_in(folder: Path) -> dict[Path, int]:
    """Return all files with their time of change."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def outline_of(page: str) -> Outline:
    """Parse a page of the viewer: closed tags, no address but its own, no script but its own file."""
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    assert len(outline.ids) == len(set(outline.ids))
    assert all(address.startswith((f"/{TOKEN}/", "#", "data:,")) for address in outline.addresses)
    assert outline.tags["script"] == 1
    assert outline.tags["img"] == outline.tags["iframe"] == 0
    assert " style=" not in page
    return outline


ODD = (
    *('{"trainer": "x"}', '{"trainer": null}', '{"trainer": [1]}', '{"environments": 5}', '{"rollout": []}', "[]", "{"),
    *('{"trainer": {"num_rollout": []}}', '{"rollout": {"journal": [1]}}', '{"trainer": {"model": {}, "backend": 1}}'),
)


@pytest.mark.parametrize("config", ODD)
async def test_odd_configuration_spoils_its_own_run_alone(runs: Path, config: str) -> None:
    make_run(runs / "odd", steps=2)
    (runs / "odd" / "config.json").write_text(config, encoding="utf-8")
    (runs / "odd" / "summary.json").write_text('{"seconds_total": "x", "error": 5}', encoding="utf-8")
    async with viewed(runs) as client:
        answer = await client.get(f"/{TOKEN}/")
        assert answer.status == 200
        assert {*re.findall(r"/run/(\w+)", await answer.text())} >= {"local", "slime", "rollouts", "agent"}
        for path in ("run/local", "run/odd", "run/odd/episode/1", "run/odd/group/1"):
            answer = await client.get(f"/{TOKEN}/{path}")
            assert (answer.status == 200) or ("journal" in config and answer.status == 404), path
            outline_of(await answer.text())


async def test_every_kind_of_run_has_its_pages(runs: Path) -> None:
    before = files_in(runs)
    async with viewed(runs) as client:
        listed = await (await client.get(f"/{TOKEN}/")).text()
        assert set(re.findall(r'/run/(\w+)"', listed)) == {"local", "slime", "rollouts", "agent"}
        assert '<td>50\u00a0%<div class="meta">played</div></td>' in listed  # rollouts alone
        for name in ("local", "slime", "rollouts", "agent"):
            for path in ("", "/episodes", "/episode/1", "/group/1"):
                answer = await client.get(f"/{TOKEN}/run/{name}{path}")
                assert answer.status == 200, (name, path)
                outline_of(await answer.text())
        slime = await (await client.get(f"/{TOKEN}/run/slime")).text()
        assert "Loss over training steps" in slime
        assert "step 3 of 3" in slime
        assert "So far, in 3 steps" in slime
        assert ("first 35" in slime, "before 35" in slime) == (True, False)
        assert "step 2 of" not in await (await client.get(f"/{TOKEN}/run/local")).text()
        assert "Entropy, nats per token" in slime
        played = await (await client.get(f"/{TOKEN}/run/rollouts")).text()
        assert "Nothing to compare yet" not in played
        assert "did not finish" not in played
        assert ("played tasks" in played, "held-out tasks" in played) == (True, False)
        agent = await (await client.get(f"/{TOKEN}/run/agent/episode/4")).text()
        assert "continues turn 1" in agent
        assert ("Next" in agent, "Previous" in agent) == (False, True)
        first = await (await client.get(f"/{TOKEN}/run/agent/episode/1")).text()
        assert re.sub(r"<title>.*</title>", "", first).count("Episode 1") == 1
        assert ("Next" in first, "Previous" in first) == (True, False)
    assert files_in(runs) == before


def test_state_of_a_run_tells_what_became_of_it(tmp_path: Path) -> None:
    folders = {name: make_run(tmp_path / name, steps=2, finished=False) for name in ("begun", "starting", "killed")}
    first, *_ = (folders["begun"] / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folders["begun"] / "metrics.jsonl").write_text(first, encoding="utf-8")  # the evaluation before training
    folders["played"] = make_rollouts(tmp_path / "played")
    for name in ("starting", "killed", "played"):
        for file in folders[name].iterdir():
            os.utime(file, (0, 0))
    (folders["starting"] / "engine.log").write_text("loading weights", encoding="utf-8")
    states = {row.name: row.state for row in Catalog(tmp_path).rows()}
    assert states == {"begun": "running", "starting": "running", "killed": "stopped", "played": "finished"}


async def test_page_follows_a_run(runs: Path) -> None:
    async with viewed(runs) as client:
        address = f"/{TOKEN}/run/rollouts/episodes"
        assert "<b>3</b> episodes match" in await (await client.get(address)).text()
        add(runs / "rollouts", trajectory_of(key="late"))
        assert "<b>4</b> episodes match" in await (await client.get(address)).text()


async def test_only_the_token_opens_pages(runs: Path) -> None:
    async with viewed(runs) as client:
        for path in ("/", "/x/", "/favicon.ico", f"/{TOKEN}x/"):
            assert (await client.get(path)).status == 403
        assert (await client.get(f"/{TOKEN}/", headers={"Host": "evil.example"})).status == 403
        assert (await client.post(f"/{TOKEN}/")).status == 405
        answer = await client.get(f"/{TOKEN}/")
        assert HEADERS.items() <= answer.headers.items()
        assert "unsafe" not in HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("run/nope", 404),
        ("run/empty", 404),
        ("run/..%2Flocal", 404),
        ("run/local/episode/99", 404),
        ("run/local/episodes?step_from=x", 400),
        ("server.py", 404),
        ("live.js", 200),
    ],
)
async def test_wrong_address_is_refused(runs: Path, path: str, status: int) -> None:
    async with viewed(runs) as client:
        answer = await client.get(f"/{TOKEN}/{path}")
        assert answer.status == status


async def test_hostile_text_is_text(tmp_path: Path) -> None:
    make_hostile(tmp_path / "runs" / "bad")
    page = ""
    async with viewed(tmp_path / "runs") as client:
        for path in ("", "run/bad", *(f"run/bad/{page}" for page in ("episodes", "episode/7", "group/7"))):
            answer = await client.get(f"/{TOKEN}/{path}")
            page = await answer.text()
            assert answer.status == 200, path
            outline_of(page)
            assert "<script>alert" not in page
            assert "\x1b" not in page
            assert "\u202e" not in page
        assert "&lt;script&gt;alert" in page
        answer = await client.get(f"/{TOKEN}/run/bad/episodes", params={"task": HOSTILE, "environment": HOSTILE})
        outline_of(await answer.text())


async def test_one_run_or_one_journal_is_shown(runs: Path) -> None:
    journal = next((runs / "rollouts").glob("journal-*"))
    for root, name in ((runs / "local", "local"), (journal, journal.name)):
        async with viewed(root) as client:
            assert (await client.get(f"/{TOKEN}/run/{name}")).status == 200
            assert (await client.get(f"/{TOKEN}/run/{name}/episode/1")).status == 200


def test_missing_folder_is_refused(tmp_path: Path) -> None:
    assert main(["view", str(tmp_path / "nothing")]) == 1
    with pytest.raises(ConfigError):
        Viewer(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_tokens_differ(tmp_path: Path) -> None:
    tokens = {Viewer(tmp_path).token for _ in range(3)}
    assert len(tokens) == 3
    assert all(len(token) >= 32 for token in tokens)
