"""Branches of an agent in metrics, uploads and the viewer, and the report at the end of a run."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

from orl_core.config import EnvironmentConfig, RunConfig, decode_config
from orl_core.trajectory import Trajectory
from orl_launcher.view.episode import episode_rows
from orl_launcher.view.evaluations import notices_of
from orl_launcher.view.tables import agents_table
from orl_rollout.episodes.events import events_of
from orl_rollout.episodes.journal import Entry, decode_entry, encode_entry
from orl_rollout.results.metrics import metrics_of, stats_of
from orl_rollout.results.outcome import outcome_of
from orl_rollout.run_folder.metrics_log import MetricsRow
from orl_rollout.run_folder.record import Record
from rich.console import Console

from tests.gateway.agents import ChatAgent, Model, episode_of, turn
from tests.kit.secrets import NO_SECRETS

SUMMARY = "We said that I say the number 0. before."


async def branched() -> Trajectory:
    """A conversation of two turns, a second sample of the second one, and a compaction."""
    async with episode_of(Model(("text",))) as episode:
        agent = ChatAgent()
        agent.user("Begin.")
        await turn(episode, agent)
        agent.answer("Go on.")
        await turn(episode, agent)
        await turn(episode, agent.repeated())
        compacted = ChatAgent()
        compacted.user(SUMMARY)
        await turn(episode, compacted)
        await episode.finish()
    return episode.trajectory()


def config_of(**fields: Any) -> RunConfig:
    return decode_config({"environments": {"A/B": {}}, **fields}, "test")


async def test_rows_of_branches_are_counted() -> None:
    metrics = metrics_of([stats_of(outcome_of(await branched(), EnvironmentConfig(), NO_SECRETS))])
    assert [metrics[f"A/B/{name}"] for name in ("rows", "single_rows")] == [3.0, 0.0]
    assert metrics["A/B/trained_tokens"] == metrics["A/B/action_tokens"] > 0


async def test_report_is_there_for_agents_alone() -> None:
    metrics = metrics_of([stats_of(outcome_of(await branched(), EnvironmentConfig(), NO_SECRETS))])
    table = agents_table([MetricsRow(step=0, kind="train", metrics=metrics)])
    written = StringIO()
    Console(width=100, file=written).print(table)
    lines = [line.split() for line in written.getvalue().splitlines()[2:] if line.strip()]
    told = {" ".join(words[:-1]): words[-1] for words in lines}
    assert told["rows of a rollout"] == "3"
    plain = {name: value for name, value in metrics.items() if name in ("A/B/rollouts", "A/B/action_tokens")}
    assert agents_table([MetricsRow(step=0, kind="train", metrics=plain)]).row_count == 0


async def test_journal_and_viewer_know_branches() -> None:
    entry = Entry(key="k", time=1.0, reward=0.0, success=False, trajectory=await branched())
    written = encode_entry(entry)
    read = decode_entry(written)
    assert decode_entry(written.replace(b'"nudge"', b'"branch":"fork","nudge"')) == read, "of the release before"
    assert read.trajectory.parents == entry.trajectory.parents == (-1, 0, 0, -1)
    rows = episode_rows("e", read, None)
    assert "continues turn 1" in rows.turns[2].title
    assert "begins a conversation" in rows.turns[3].title
    assert "2 branches" in rows.facts


async def test_upload_names_the_agent_and_shows_its_branches() -> None:
    entry = Entry(key="k", time=1.0, reward=0.0, success=False, trajectory=await branched())
    for agent, name in (("my.module:play", "my.module:play"), ({"command": ["/usr/bin/my-agent", "-x"]}, "my-agent")):
        events = [*events_of(entry, config_of(agent=agent))]
        (info,) = (event["rollout_info"] for event in events if event["eventType"] == "rollout_update")
        assert info["harness"] == name
    texts = [event["content"] for event in events if event.get("type") == "user_message"]
    assert [texts.count(text) for text in ("Begin.", "Go on.", SUMMARY)] == [1, 2, 1]
    (info,) = (event["rollout_info"] for event in events_of(entry, config_of()) if "rollout_info" in event)
    assert info["harness"] == "orl"


def test_unmet_demands_are_named_at_the_end(tmp_path: Path) -> None:
    metrics = {"A/B/agent/forced_calls_unmet": 0.5, "A/B/rollouts": 4.0}
    points = tuple(MetricsRow(step=step, kind="train", metrics=metrics) for step in (0, 1))
    record = Record(folder=tmp_path, config={}, summary={}, points=points)
    (notice,) = [text for text in notices_of(record) if "demanded" in text]
    assert "2 of 2" in notice
