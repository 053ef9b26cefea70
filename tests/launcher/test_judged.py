"""Success is a share of the judged rollouts: each place that shows it says how many were judged if any were not."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from orl_launcher.main import main
from orl_launcher.view.catalog import Catalog, state_of
from orl_launcher.view.progress import Course, following
from orl_launcher.view.report import charts_of, write_report
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.metrics_log import MetricsRow
from orl_rollout.run_folder.record import read_record
from rich.console import Console

from tests.launcher.outputs import printed
from tests.launcher.synthetic import ENVIRONMENT, make_run
from tests.launcher.view.runs import TOKEN, make_rollouts, viewed

Capture = pytest.CaptureFixture[str]
FIRST = "2 of 16 judged, 14 in ERROR"
STEPS = 4


def counts(errors: int, **more: float) -> dict[str, float]:
    """Metrics of 16 rollouts of which `errors` ended in ERROR."""
    named = {"rollouts": 16.0, "judged": 16.0 - errors, "stop/error": errors / 16, **more}
    return {f"{ENVIRONMENT}/{name}": value for name, value in named.items()}


def rewrite(folder: Path, kind: str, metrics: dict[str, float], *steps: int) -> Path:
    """Give the rows of one kind and these steps other metrics."""
    path = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    changed = [row | metrics if (row["kind"], row["step"]) in {(kind, step) for step in steps} else row for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in changed), encoding="utf-8")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose first evaluation lost 14 of its 16 rollouts."""
    folder = make_run(tmp_path / "runs" / "demo", steps=STEPS)
    return rewrite(folder, "eval", counts(14, success=1.0), 0)


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """A run whose steps had no signal."""
    folder = make_run(tmp_path / "runs" / "silent", steps=STEPS)
    metrics = counts(0, success=0.0, reward=0.0, groups=4.0, equal_groups=1.0, rewards=32.0)
    return rewrite(folder, "train", metrics, *range(1, STEPS + 1))


def test_progress_says_how_many_were_judged() -> None:
    course = Course(8)
    line = course.line(MetricsRow(step=0, kind="eval", metrics=counts(14, success=1.0)))
    assert line.startswith(f"held-out at step 0/8  {FIRST}  success 100\u00a0%")
    row = MetricsRow(step=1, kind="train", metrics=counts(4, success=0.5))
    assert FIRST in course.line(row)
    assert "judged" not in Course(8).line(MetricsRow(step=0, kind="eval", metrics=counts(0, success=1.0)))
    aborted = {**counts(0, success=1.0), f"{ENVIRONMENT}/judged": 15.0}
    assert "15 of 16 judged  success" in Course(8).line(MetricsRow(step=0, kind="eval", metrics=aborted))


def test_terminal_says_how_many_were_judged(capsys: Capture, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["show", str(run)]) == 0
    page = capsys.readouterr().out
    assert f"n {FIRST}" not in page
    assert f"to 100\u00a0%, {FIRST})" in page  # by environment
    assert page.count("258 of 272 judged, 14 in ERROR") >= 2  # the curve, and the run


async def test_pages_say_how_many_were_judged(run: Path) -> None:
    charts = {chart.title: chart.note for chart in charts_of(read_record(run))}
    assert "14 in ERROR" in charts["Success rate"]
    assert charts["Valid tool calls"] == ""
    pages = [write_report(run).read_text(encoding="utf-8")]
    async with viewed(run.parent) as client:
        pages += [await (await client.get(f"/{TOKEN}/{path}")).text() for path in ("run/demo", "")]
    report, page, listed = pages
    for text in (report, page):
        assert f"success went from 100\u00a0% ({FIRST}) to" in text
        assert "Success rate <span" in text
    assert "14 in ERROR" in listed
    assert "held-out" in listed


@pytest.mark.parametrize("error", ["", "no answer <b>"])
async def test_run_of_failures_alone_has_failed(error: str, tmp_path: Path) -> None:
    folder = make_rollouts(tmp_path / "runs" / "lost")
    (folder / "metrics.jsonl").unlink()
    metrics_log.append(folder / "metrics.jsonl", "eval", 0, counts(16), seconds=0)
    (folder / "summary.json").write_text(json.dumps({"rollouts": 16, **({"error": error} if error else {})}), "utf-8")
    assert state_of(read_record(folder), 0.0) == "failed"
    (line,) = Catalog(folder.parent).rows()
    assert (line.state, line.problem) == ("failed", error)
    async with viewed(folder.parent) as client:
        page = await (await client.get(f"/{TOKEN}/run/lost")).text()
        listed = await (await client.get(f"/{TOKEN}/")).text()
    assert "0 of 16 judged, 16 in ERROR" in page
    assert "0 of 16 judged, 16 in ERROR" in listed
    assert ("no answer &lt;b&gt;" in page) == ("no answer &lt;b&gt;" in listed) == bool(error)
    assert "<b>" not in page


async def test_run_without_signal_is_told_everywhere(capsys: Capture, silent: Path) -> None:
    said = "no group had two different rewards"
    assert said in write_report(silent).read_text(encoding="utf-8")
    assert any(said in notice for notice in printed(capsys, "show", str(silent))["notices"])
    assert main(["show", str(silent)]) == 0
    assert said in " ".join(capsys.readouterr().out.split())
    async with viewed(silent.parent) as client:
        assert said in await (await client.get(f"/{TOKEN}/run/silent")).text()
        assert "no signal" in await (await client.get(f"/{TOKEN}/")).text()


def test_missing_signal_is_told_once_while_training(tmp_path: Path) -> None:
    path, out = tmp_path / "metrics.jsonl", io.StringIO()
    with following(path, None, Console(file=out, width=200)):
        for step in range(1, 9):
            share = 0.5 if step == 5 else 1.0
            metrics_log.append(path, "train", step, counts(0, success=0.0, groups=4.0, equal_groups=share), seconds=1)
    assert out.getvalue().count("No signal in steps 1 to 3") == 1
    assert out.getvalue().count("No signal") == 1
