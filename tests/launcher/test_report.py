"""The report: complete from the folder alone, self-contained, well-formed, and deaf to what episodes say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from orl_launcher.view.episode import episode_rows, load_decoder
from orl_launcher.view.evaluations import results_of
from orl_launcher.view.report import charts_of, write_report
from orl_launcher.view.svg import NUMBER, SECONDS, SHARE, Drawing, Line, Stroke, draw
from orl_rollout.episodes.journal import read_journal
from orl_rollout.results.metrics import wilson
from orl_rollout.run_folder.record import read_record

from tests.kit.pages import HOSTILE, Outline, outline_of, page_of
from tests.launcher.synthetic import JOURNAL, make_run


def report_of(folder: Path) -> tuple[str, Outline]:
    page = write_report(folder).read_text(encoding="utf-8")
    return page, outline_of(page)


def test_a_whole_run(tmp_path: Path) -> None:
    page, outline = report_of(make_run(tmp_path / "demo"))
    assert outline.headings == [
        "demo",
        "By environment",
        "Over training",
        "Learning",
        "Settings",
    ]
    assert "363\u202f312" in page


def episodes_of(folder: Path) -> tuple[str, Outline]:
    entries, decoder = [*read_journal(folder)][:2], load_decoder(folder)
    page = page_of(*(episode_rows("Episode", entry, decoder) for entry in entries))
    outline = Outline()
    outline.feed(page)
    return page, outline


def test_episodes_show_each_id_and_call(tmp_path: Path) -> None:
    page, outline = episodes_of(make_run(tmp_path / "demo"))
    sampled = [title for title in outline.titles if "logprob" in title]
    assert len(sampled) == 4 * 51  # ids of four turns
    assert all(re.fullmatch(r"id \d+ · logprob -\d+\.\d{3}", title) for title in sampled)
    assert "<code>guess(number=" in page


def test_long_prompt_is_folded_and_samples_stay_visible(tmp_path: Path) -> None:
    page, outline = episodes_of(make_run(tmp_path / "demo", prompt="word " * 400))
    assert page.count("<summary>the system prompt, first ") == 2
    assert outline.classes["u"] == 4 * 51 + 1
    folded = re.findall(r"<details><summary>the system prompt, first \d+ ids</summary>(.*?)</details>", page, re.DOTALL)
    assert len(folded) == 2
    assert all('class="u' not in part for part in folded)


STEPS = [("train", step) for step in range(21, 31)]


@pytest.mark.parametrize(
    ("kept", "told", "absent"),
    [
        ([("eval", 0), ("train", 1), ("train", 2)], "on the training tasks", "which the model never trained on"),
        ([("train", 1)], "Nothing to compare yet", "success in training"),
        ([("eval", 20), *STEPS, ("eval", 30)], "In 10 steps (21 to 30) and", "Nothing to compare yet"),
    ],
)
def test_headline_compares_what_was_measured(
    tmp_path: Path, kept: list[tuple[str, int]], told: str, absent: str
) -> None:
    folder = make_run(tmp_path / "demo")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    left = [json.dumps(row) + "\n" for row in rows if (row["kind"], row["step"]) in kept]
    (folder / "metrics.jsonl").write_text("".join(left), encoding="utf-8")
    page, _ = report_of(folder)
    assert told in page
    assert absent not in page


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "<b>&")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["openreward_run_name"] = HOSTILE
    config["trainer"]["model"] = HOSTILE
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    metrics = {"step": 31, "kind": "train", HOSTILE: 1.0}
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(metrics) + "\n")
    page, outline = report_of(folder)
    assert outline.headings[0] == "<b>&"
    assert page.count("&lt;script&gt;") == 3  # the model twice


def test_an_interrupted_run_with_torn_files(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "demo", finished=False)
    for name in ("metrics.jsonl", JOURNAL):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[:-40])
    (folder / "summary.json").write_text("{", encoding="utf-8")
    page, outline = report_of(folder)
    assert "This run did not finish" in page
    assert "Learning" in outline.headings


@pytest.mark.parametrize("name", ["metrics.jsonl", JOURNAL, "checkpoint/tokenizer.json"])
def test_a_folder_that_lacks_a_file(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path / "demo")
    (folder / name).unlink()
    _page, outline = report_of(folder)
    assert "Settings" in outline.headings
    assert ("Over training" in outline.headings) == (name != "metrics.jsonl")


@pytest.mark.parametrize(
    ("high", "units", "label"),
    [
        *((13_000.0, SECONDS, "4 h"), (1.0, SHARE, "75 %")),
        *((2e9, NUMBER, "2 G"), (0.004, NUMBER, "0.004")),
    ],
)
def test_axis_is_labelled_in_units(high: float, units: tuple[tuple[float, str], ...], label: str) -> None:
    strokes = (Stroke(line=Line((0, 9), (0.0, high)), style="eval"),)
    labels = re.findall(">([^<]+)</text>", draw(Drawing(group="", title="", units=units, strokes=strokes)))
    assert label in labels
    assert not any("e+" in each for each in labels)


def test_results_stand_by_environment_with_n_and_interval(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    with (run / "metrics.jsonl").open("w", encoding="utf-8") as rewritten:
        for line in lines:
            point = json.loads(line)
            if point["kind"] == "eval":
                for name, success in (("A/<q>", 0.25), ("A/<q>/hard", 0.5), ("all", 0.4)):
                    more = {"rollouts": 12, "judged": 8, "tasks": 4, "success": success, "reward": 0.1, "pass@2": 0.5}
                    point |= {f"{name}/{key}": value for key, value in more.items()}
            rewritten.write(json.dumps(point) + "\n")
    results = results_of(read_record(run))
    assert results is not None
    (row,) = (row for row in results.rows if row[0] == "A/<q>/hard")
    low, high = wilson(0.5, 8)
    assert row[1] == f"50\u00a0% ({100 * low:.0f} to {100 * high:.0f}\u00a0%, 8 of 12 judged, 4 in ERROR)"
    assert row[-1].endswith("n 4)")
    success, *_ = charts_of(read_record(run))
    assert [stroke.label for stroke in success.strokes if stroke.style == "set"] == ["GuessNumber", "<q>", "<q>/hard"]
    page = write_report(run).read_text(encoding="utf-8")
    assert "A/&lt;q&gt;/hard" in page
    assert "<q>" not in page
