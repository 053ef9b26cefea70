"""L6: secrets stay secret. A value that an environment or a model echoes, in whatever form, reaches no sink.

A value, a form and a place are drawn; the episode is played through the runtime, and every sink is searched: journal,
upload events, the samples of each trainer, logs, metrics, terminal and HTML page. A sink is searched for the echo as it
was said and for the value itself, not by the scrubber that is under test.
"""

from __future__ import annotations

import base64
import io
import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_cluster.hooks.samples import fill, split
from orl_core.config import RunConfig, decode_config
from orl_core.errors import OrlError, SessionError
from orl_core.estimators import ESTIMATORS
from orl_core.messages import TextBlock, ToolResult, text_message
from orl_core.task import Task
from orl_core.trajectory import Generation, StopReason, Trajectory
from orl_launcher.view.episode import episode_rows
from orl_launcher.view.tables import episode_view
from orl_launcher.view.terminal import Terminal
from orl_rollout.episodes.events import events_of
from orl_rollout.episodes.journal import Journal, read_journal
from orl_rollout.loop.session import Session
from orl_rollout.openreward.faults import as_session_error
from orl_rollout.openreward.transport import RemoteFailure
from orl_rollout.results.metrics import metrics_of, stats_of
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.training.rows import rows_of
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit import one_loop
from tests.kit.pages import page_of
from tests.kit.runtimes import runtime_of
from tests.kit.secret_forms import FORMS
from tests.kit.tokenizers import renderer_of, tokenizer
from tests.miles.miniature import Sample as MilesSample
from tests.slime.miniature import Sample as SlimeSample

TASK = Task(env_name="A/B", deployment_name="A/B")
RENDERER = renderer_of()
DECODE = tokenizer("qwen3").decode
LETTERS = st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='%&\\"')
VALUES = st.text(LETTERS, min_size=20, max_size=60).map(lambda value: f"s#{value}\n{value[::-1]}")
PLACES = ("opening", "result", "two blocks", "two turns", "fault", "long fault", "model", "bug")


class Sessions:
    def __init__(self, place: str, echo: str) -> None:
        self.place, self.echo = place, echo

    def session(self, task: Task) -> Session:
        del task
        half = len(self.echo) // 2
        said = [self.echo[:half], self.echo[half:]]
        opening = (text_message("user", self.echo if self.place == "opening" else "Play."),)
        if self.place == "two blocks":
            return ScriptedSession([result(*said, finished=True)], messages=opening)
        if self.place == "two turns":
            return ScriptedSession([result(said[0]), result(said[1], finished=True)], messages=opening)
        if self.place in ("fault", "long fault"):
            return ScriptedSession([self.fault()], messages=opening)
        if self.place == "bug":
            return ScriptedSession([RuntimeError(f"a bug: {self.echo}")], messages=opening)
        text = self.echo if self.place == "result" else "ok"
        return ScriptedSession([result(text, finished=True)], messages=opening)

    def fault(self) -> SessionError:
        """Return the environment's own failure as it is shown; the value is at the cut of a line."""
        before = "x" * (1_930 if self.place == "long fault" else 1)
        with pytest.raises(SessionError) as caught, as_session_error("calling tool `act`"):
            raise RemoteFailure(f"{before} {self.echo}")
        return caught.value


def result(*texts: str, finished: bool = False) -> ToolResult:
    return ToolResult(name="act", content=tuple(TextBlock(text=text) for text in texts), reward=1.0, finished=finished)


def engine(place: str, echo: str) -> ScriptedEngine:
    text = f"{echo}\n" if place == "model" else ""
    call = f'{text}<tool_call>\n{{"name": "act", "arguments": {{}}}}\n</tool_call><|im_end|>'
    ids = tuple(tokenizer("qwen3").encode_joint(call))
    return ScriptedEngine([Generation(token_ids=ids, logprobs=(-0.5,) * len(ids), finish_reason="stop")] * 3)


def sinks(outcome: Outcome, config: RunConfig, folder: Path) -> dict[str, str]:
    """Everything that anybody could read of the rollout."""
    (entry,) = read_journal(folder)
    terminal = Terminal(file=io.StringIO(), width=4_000)
    rows = episode_rows("Episode", entry, None)
    terminal.print(episode_view(rows))
    slime, miles = SlimeSample(tokens=[9]), MilesSample(tokens=[9])
    fill(slime, outcome, text_of=DECODE)
    samples: list[Any] = [slime, *split(miles, outcome, text_of=DECODE)]
    ids = [sample.tokens for sample in samples]
    assert not rows_of([outcome], 1, ESTIMATORS["grpo"], turns=False)
    assert not any(sample.loss_mask and any(sample.loss_mask) for sample in samples)
    return {
        "journal": msgspec.json.encode(entry, enc_hook=repr).decode(),
        "events": json.dumps(list(events_of(entry, config)), ensure_ascii=False),
        "samples": repr(samples),
        "ids": " ".join(map(DECODE, ids)),
        "outcome": repr(outcome),
        "metrics": json.dumps(metrics_of([stats_of(outcome)])),
        "page": page_of(rows),
        "terminal": terminal.file.getvalue(),  # pyright: ignore[reportAttributeAccessIssue]
    }


async def played(place: str, echo: str, config: RunConfig, folder: Path) -> Outcome:
    with Journal(folder) as journal:
        runtime = runtime_of(config, Sessions(place, echo), journal=journal)
        return await runtime.play(RolloutRequest(task=TASK, rollout_id="k"), engine(place, echo))


@given(value=VALUES, form=st.sampled_from(sorted(FORMS)), place=st.sampled_from(PLACES))
def test_an_echo_reaches_no_sink(value: str, form: str, place: str) -> None:
    echo = FORMS[form](value)
    config = decode_config({"environments": {"A/B": {}}, "secrets": {"k": value}}, "test")
    logged = io.StringIO()
    handler = logging.StreamHandler(logged)
    logging.getLogger("orl").addHandler(handler)
    try:
        with TemporaryDirectory() as folder:
            outcome = one_loop.run(played(place, echo, config, Path(folder)))
            found = sinks(outcome, config, Path(folder)) | {"log": logged.getvalue()}
    finally:
        logging.getLogger("orl").removeHandler(handler)
    assert not outcome.trajectory.trainable
    assert outcome.trajectory.contains_secret
    assert outcome.datums == ()
    lines = [line for line in value.splitlines() if len(line) > 12]
    told = {echo, json.dumps(echo)[1:-1], value, *lines, base64.b64encode(value.encode()).decode().strip("=")[:-2]}
    for sink, text in found.items():
        assert not [one for one in told if one in text], sink
        if place == "long fault":  # not even its beginning, before the cut
            assert echo[:12] not in text


def test_secret_equal_to_our_word_costs_text_not_the_run(tmp_path: Path) -> None:
    config = decode_config({"environments": {"A/B": {}}, "secrets": {"k": "finished", "l": "messages"}}, "test")
    outcome = one_loop.run(played("result", "ok", config, tmp_path))
    assert outcome.trajectory.contains_secret
    assert [entry.trajectory.turns for entry in read_journal(tmp_path)] == [()]


async def test_error_of_reward_function_is_scrubbed(tmp_path: Path) -> None:
    fields = {"secrets": {"k": "the-hidden-value"}, "reward": "tests.laws.test_l6_secrets:telling"}
    config = decode_config({"environments": {"A/B": {}}, **fields}, "test")
    outcome = await played("result", "ok", config, tmp_path)
    assert outcome.trajectory.stop_reason is StopReason.ERROR
    assert "[secret]" in outcome.trajectory.error
    assert "the-hidden" not in repr(list(read_journal(tmp_path))) + repr(outcome)


def telling(_: Trajectory) -> float:
    raise OrlError("no judge: the-hidden-value")
