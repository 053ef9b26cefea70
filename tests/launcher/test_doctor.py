"""`orl doctor` against real servers on loopback: environments, an engine's stand-in, a small tokenizer in a folder."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from orl_launcher import trainers
from orl_launcher.doctor.episodes import random_arguments
from orl_launcher.main import main
from orl_testing import Fault, FaultKind, SglangServer
from orl_testing.environments import Served, serve

from tests.kit.configs import LOCAL
from tests.kit.routing import router
from tests.kit.serving import engine
from tests.kit.tokenizers import build, template
from tests.launcher.platform_api import Platform, platform_api
from tests.local.checkpoints import write_checkpoint
from tests.two_pythons.environment import make_environment

Capture = pytest.CaptureFixture[str]
Doctor = Callable[..., list[str]]
NOWHERE = "http://127.0.0.1:9"  # the port of `discard`, which nobody serves
ON_PLATFORM: dict[str, dict[str, Any]] = {"Echo": {"base_url": None, "variant": "echo"}}
SLIME = {"backend": "slime", "task_data": "none.jsonl"}
SECRET = "hush-hush-4711"


@pytest.fixture(scope="module")
def gallery() -> Generator[Served]:
    with serve() as served:
        yield served


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch, gallery: Served) -> Generator[Platform]:
    """The gallery as the platform's sessions, next to the API that lists required secrets."""
    with platform_api() as served:
        monkeypatch.setenv("OPENREWARD_API_URL", served.url)
        monkeypatch.setenv("OPENREWARD_SESSION_URL", gallery.url)
        yield served


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ORL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def doctor(capsys: Capture, tmp_path: Path, gallery: Served, model: str) -> Doctor:
    """Run it on a configuration made of `environments` and `more`, expect `code`, give the lines it prints."""

    def run(*argv: str, code: int = 0, environments: dict[str, dict[str, Any]] | None = None, **more: Any) -> list[str]:
        named = (environments or {"Echo": {}}).items()
        chosen = {f"gallery/{name}": {"base_url": gallery.url, **own} for name, own in named}
        trainer = {"model": model, **more.pop("trainer", {})}
        rollout = {"turn_tokens": 64, "context_tokens": 4096}
        tree = {"environments": chosen, "trainer": trainer, "rollout": rollout, **more}
        path = tmp_path / "c.yaml"
        path.write_bytes(msgspec.json.encode(tree))
        assert main(["doctor", "--config", str(path), *argv]) == code
        printed = capsys.readouterr()
        assert "orl: error" not in printed.err
        return printed.out.splitlines()

    return run


def found(lines: list[str], verdict: str) -> list[str]:
    """Return the findings with this verdict."""
    mark = f"  {verdict:<11}  "
    return [line.removeprefix(mark) for line in lines if line.startswith(mark)]


def first(_ids: list[int], _params: dict[str, Any]) -> list[int]:
    return [7]


def test_doctor_ok_exits_0(doctor: Doctor, gallery: Served, model: str) -> None:
    with engine(first) as url:
        lines = doctor("--engine", url)
    titles = [line for line in lines if not line.startswith(" ")]
    assert titles[:-1] == [
        *("configuration", "secrets", "environments", "tokenizer", "first prompt", "engine", "trainer")
    ]
    fine = found(lines, "ok")
    assert titles[-1] == f"{len(fine)} ok"
    for told in (
        "gallery/Echo: train (6 tasks)",
        "gallery/Echo: a session opens with 1 message, tools: echo, finish",
        "thinking: not set",
        "weights `default`",
        "its context holds 32768 ids, the run needs 4096",
        "id 7 sampled after",
        "local: flags and sizes fit",
    ):
        assert any(told in line for line in fine), told
    assert any("certified" in line and "hermes" in line for line in fine)
    shown = "\n".join(line.strip() for line in lines)
    assert "<|im_start|>user\nTask 0.<|im_end|>\n<|im_start|>assistant" in shown
    assert "GiB on each GPU     training    rollouts\nweights" in shown
    assert gallery.sessions == 0


XML = "<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>"


@pytest.mark.parametrize(
    ("words", "more", "findings"),
    [
        (["--set", "rollout.turn_tokens=0"], {}, {"failed": "$.rollout.turn_tokens"}),
        (["--set", "rollout.context_tokens=100"], {}, {"failed": "no turn can be played"}),
        (["--set", "rollout.turn_tokens=4090"], {}, {"warning": "fewer than rollout.turn_tokens"}),
        ([], {"reward": "no_such_module:reward"}, {"failed": "no_such_module"}),
        ([], {"reward": "math:fsum"}, {"ok": "reward: math:fsum", "not checked": "--engine URL"}),
        ([], {"chat_template_kwargs": {"effort": 1}}, {"failed": "effort"}),
        (
            [],
            {"system_prompt_template": f"{{tools}} {XML}"},
            {"ok": "format of tool calls: qwen3_coder", "warning": "taught calls: "},
        ),
    ],
)
def test_page_says_what_is_set_and_what_is_wrong(
    doctor: Doctor, words: list[str], more: dict[str, Any], findings: dict[str, str]
) -> None:
    lines = doctor(*words, code="failed" in findings, **more)
    for verdict, told in findings.items():
        assert any(told in line for line in found(lines, verdict))


PLAYER = """
def finish(messages):
    return "finish", {}

def echo(messages):
    return "echo", {"text": "again"}
"""


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_players.py").write_text(PLAYER, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


def test_fit_plays_each_environment_by_random_calls(
    doctor: Doctor, gallery: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines = doctor("--fit", code=1, environments={"Echo": {"max_turns": 50}, "Picture": {}})
    fits = [line for line in found(lines, "ok") if "episodes fit" in line]
    assert len(fits) == 1
    assert fits[0].startswith("gallery/Echo: 8 episodes")
    (failed,) = found(lines, "failed")
    assert failed.startswith("gallery/Picture")
    assert "image" in failed
    (row,) = [line.split() for line in lines if line.strip().startswith("gallery/Picture")]
    assert int(row[3]) == 8, "images"
    assert gallery.sessions == 0


@pytest.mark.usefixtures("player")
@pytest.mark.parametrize(
    ("words", "verdict", "told"),
    [
        (["finish"], "warning", ["`max_turns` of environments.gallery/Echo to 2", "mean reward 1, success 100"]),
        (["echo"], "warning", ["8 of 8 episodes end at 5 turns", "`finished`", "mean reward 1.25, success 100"]),
        (["echo", "--set", "rollout.turn_tokens=1000"], "warning", ["turn_tokens is 1000"]),
        (["none"], "failed", ["my_players"]),
    ],
)
def test_fit_says_what_does_not_fit_and_what_a_player_earns(
    doctor: Doctor, words: list[str], verdict: str, told: list[str]
) -> None:
    player, *more = words
    code = verdict == "failed"
    lines = doctor(
        "--fit", "--player", f"my_players:{player}", *more, code=code, environments={"Echo": {"max_turns": 5}}
    )
    assert any(told[0] in line for line in found(lines, verdict))
    assert all(any(each in line for line in lines) for each in told)


SCHEMA = {
    "type": "object",
    "required": ["word", "number", "share", "flag", "list", "nested", "kind"],
    "properties": {
        "word": {"type": "string"},
        "number": {"type": "integer", "minimum": 3, "maximum": 5},
        "share": {"type": "number"},
        "flag": {"type": "boolean"},
        "list": {"type": "array", "items": {"type": "integer"}},
        "nested": {"type": "object", "required": ["x"], "properties": {"x": {"enum": ["a", "b"]}}},
        "kind": {"const": "move"},
        "left_out": {"type": "string"},
    },
}


def test_random_arguments_fit_their_schema() -> None:
    for seed in range(50):
        arguments = random_arguments(SCHEMA, random.Random(seed))
        assert jsonschema_rs.is_valid(SCHEMA, arguments)
        assert "left_out" not in arguments


def test_agent_is_loaded_and_not_played(doctor: Doctor, gallery: Served) -> None:
    for agent in ("true --now", "tests.kit.playing_agent:plays"):
        assert any("agent can be loaded" in line for line in found(doctor("--agent", agent), "ok"))
    assert any("PATH" in line for line in found(doctor("--agent", "no-such-program", code=1), "failed"))
    assert gallery.sessions == 0


def test_secrets_are_named_with_where_they_are_and_never_shown(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "Task 0.")  # the first prompt echoes it
    secrets = {"token": None, "in_file": SECRET, "short": {"value": "abc", "hosts": []}}
    lines = doctor(code=0, secrets=secrets)
    brief, written, short = found(lines, "warning")
    assert brief.startswith("token (all environments): shorter than 8 characters")
    assert written.startswith("in_file (all environments): its value is in the configuration")
    assert "IN_FILE" in written
    assert short.startswith("short (all environments): shorter than 4 characters")
    assert SECRET not in "".join(lines)
    assert "Task 0." not in "".join(lines)
    assert any("[secret]" in line for line in lines)


def test_a_secret_without_a_value_is_a_warning(doctor: Doctor) -> None:
    lines = doctor(environments={"Echo": {"secrets": {"token": None}}, "Terminal": {"secrets": {"other": ""}}})
    (line,) = found(lines, "warning")
    assert line.startswith("token (gallery/Echo): ")
    assert "token or TOKEN" in line
    assert "other (gallery/Terminal): taken away" in found(lines, "ok")
    assert any("gallery/Terminal: a session opens" in line and "plain answer" in line for line in found(lines, "ok"))


def test_the_platforms_key_is_asked_for_where_it_is_needed(
    doctor: Doctor, gallery: Served, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = doctor(code=1, environments=ON_PLATFORM)
    missing, closed = found(lines, "failed")
    assert missing == "OPENREWARD_API_KEY: not set, but needed for gallery/Echo. Set this variable"
    assert "set OPENREWARD_API_KEY, or a `base_url`" in closed
    monkeypatch.setenv("OPENREWARD_API_KEY", SECRET)
    lines = doctor(environments=ON_PLATFORM)
    assert "OPENREWARD_API_KEY: set, for gallery/Echo" in found(lines, "ok")
    assert "gallery/Echo: all secrets that it needs are named: none" in found(lines, "ok")
    assert any("a session opens" in line for line in found(lines, "ok"))
    assert SECRET not in "".join(lines)
    assert platform.asked == [("/v1/environments/gallery/Echo/required-secrets", SECRET)]


def test_secrets_that_the_platform_says_are_needed(
    doctor: Doctor, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENREWARD_API_KEY", SECRET)
    monkeypatch.setenv("TOKEN", "1234")
    platform.needed = ["TOKEN", "JUDGE_KEY"]
    named = {"token": {"hosts": ["example.org"]}}
    (line,) = found(doctor(code=1, environments=ON_PLATFORM, secrets=named), "failed")
    assert line.startswith("gallery/Echo: needs the secrets JUDGE_KEY. Name them")
    named["judge_key"] = {"hosts": ["example.org"]}
    (line,) = found(doctor(code=1, environments=ON_PLATFORM, secrets=named), "failed")
    assert "`judge_key`" in line
    platform.needed = None
    (line,) = [line for line in found(doctor(environments=ON_PLATFORM), "not checked") if "secrets" in line]
    assert "HTTP 500" in line


@pytest.mark.slow
def test_environments_fail_one_by_one_with_their_words(doctor: Doctor, gallery: Served) -> None:
    broken = {
        "Gone": {"base_url": NOWHERE},
        "Echo": {"splits": ["trian"]},
        "FailingSetup": {},
        "SlowSetup": {},
        "Terminal": {},
    }
    lines = doctor("--timeout", "5", code=1, environments=broken)
    gone, split, setup = found(lines, "failed")
    assert gone.startswith("gallery/Gone: asking gallery/Gone what it serves: no answer")
    assert "no split `trian`" in split
    assert "train, test" in split
    assert "no image" in setup
    slow = "gallery/SlowSetup: opening a session takes over 5 s"
    assert any(line.startswith(slow) for line in found(lines, "still loading"))
    assert any(line.startswith("gallery/Terminal: ") and "of a context" in line for line in found(lines, "ok"))
    assert gallery.sessions == 0


@pytest.mark.parametrize(
    ("trainer", "told"),
    [
        ({"model": None}, "no model"),
        ({"model": "./no/such/folder"}, "./no/such/folder: no such folder"),
    ],
)
def test_a_model_that_is_not_there(doctor: Doctor, trainer: dict[str, Any], told: str) -> None:
    lines = doctor(code=1, trainer=trainer)
    line, by_trainer = found(lines, "failed")
    assert by_trainer.startswith("local: trainer.model")
    assert told in line
    assert "--model" in line
    assert "needs a certified tokenizer" in found(lines, "not checked")


def test_default_model_of_a_trainer_is_known(doctor: Doctor, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setattr("orl_cluster.launch.cluster_trainer.ClusterTrainer.default_model", model)
    lines = doctor(code=1, trainer={**SLIME, "model": None})
    assert any("slime" in line and model in line for line in found(lines, "ok"))
    assert any(f"{model}: certified" in line for line in found(lines, "ok"))
    assert not any("no model" in line for line in found(lines, "failed"))


def test_a_tokenizer_that_fails_its_certificate_says_which_law(doctor: Doctor, tmp_path: Path) -> None:
    folder = tmp_path / "ends_in_text"
    write_checkpoint(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 5}', encoding="utf-8")
    (line,) = found(doctor("--model", str(folder), code=1), "failed")
    assert line.startswith(f"{folder}: check 2, law L4: the stop ids")


def test_reasoning_that_cannot_be_stripped(doctor: Doctor, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    build(template("qwen2_5"), ("<tool_call>", "</tool_call>")).save_pretrained(folder)
    line, by_trainer = found(doctor("--model", str(folder), code=1, thinking="strip"), "failed")
    assert line.startswith("thinking: `thinking: strip` needs")
    assert "no weights" in by_trainer  # TRL has nothing against stripped reasoning


@pytest.mark.slow
def test_model_of_the_playground_is_made_later(capsys: Capture) -> None:
    assert main(["doctor", "--config", LOCAL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("playground/GuessNumber: a session opens" in line for line in found(lines, "ok"))
    assert any("made when `orl train`" in line for line in found(lines, "not checked"))


def test_long_prompt_is_shortened_unless_all_is_requested(doctor: Doctor) -> None:
    template = "{tools}\n" + 100 * "Think before you call. " + "middle" + 100 * " Be brief."
    shown = "\n".join(doctor(system_prompt_template=template))
    assert "--full" in shown
    assert "middle" not in shown
    assert "Task 0." in shown
    whole = "\n".join(doctor("--full", system_prompt_template=template))
    assert "middle" in whole
    assert "--full" not in whole


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault(kind=FaultKind.MISSING_LOGPROBS), "logprob"),
        (Fault(kind=FaultKind.ABORT), "returned 0 ids instead of 1 (abort)"),
    ],
)
def test_an_engine_that_cannot_be_trusted(doctor: Doctor, fault: Fault, told: str) -> None:
    with engine(first, faults=[fault]) as url:
        (line,) = found(doctor("--engine", url, code=1), "failed")
    assert line.startswith(f"{url}: ")
    assert told in line


def test_an_engine_that_is_not_there_or_is_of_another_model(doctor: Doctor, tmp_path: Path, model: str) -> None:
    (line,) = found(doctor("--engine", NOWHERE, code=1), "failed")
    assert line.startswith(f"{NOWHERE}: asking whether it is up: ")
    assert "--engine http://HOST:PORT" in line
    other = tmp_path / "another"
    other.symlink_to(model)
    with engine(first, context_tokens=2048) as url:
        lines = doctor("--engine", f"{url}/", "--model", str(other), code=1)
    assert any("serves stand-in, but the tokenizer is that of" in line for line in found(lines, "warning"))
    (line,) = found(lines, "failed")
    assert "its context holds 2048 ids, but the run needs 4096" in line


async def test_a_router_is_asked_for_an_id(doctor: Doctor) -> None:
    async with SglangServer(first) as worker, router([worker.url]) as url:
        lines = await asyncio.to_thread(doctor, "--engine", url)
    fine = found(lines, "ok")
    assert any(line.startswith(f"{url}: up") for line in fine)
    assert any("id 7 sampled after" in line for line in fine)


def test_a_trainer_that_cannot_be_run(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    (tasks, line) = found(doctor("--python", "/no/python", code=1, trainer=SLIME), "failed")
    assert tasks.startswith("trainer.task_data none.jsonl: no such file")
    assert line.startswith("slime: /no/python")
    monkeypatch.setattr(trainers, "installed", dict)
    (line,) = found(doctor(code=1), "failed")
    assert "just setup" in line


def test_step_that_opens_too_many_sockets_is_noted(doctor: Doctor) -> None:
    step = {"backend": "local", "rollout_batch_size": 1_000_000, "n_samples": 8}
    assert any("ulimit -n" in line for line in doctor(trainer=step))
    rooms = {"Echo": {"max_concurrency": 8}}
    assert not any("ulimit" in line for line in doctor(trainer=step, environments=rooms))


def test_trainer_that_loads_slowly_has_not_failed(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    monkeypatch.setattr("orl_launcher.doctor.doctor.plan_run", lambda *_, **__: released.wait(60))
    lines = doctor("--timeout", "5")
    released.set()
    assert any(line.startswith("local: loading the trainer") for line in found(lines, "still loading"))


def test_trainer_that_cannot_start_here_is_a_warning(doctor: Doctor, tmp_path: Path) -> None:
    python = make_environment(tmp_path / "env", "slime")
    own = {"backend": "slime", "cluster": {"num_gpus": 2, "model_args": "qwen3-0.6B", "megatron_ckpt": "./ckpt"}}
    lines = doctor("--python", str(python), trainer=own)
    assert [line for line in found(lines, "ok") if line.startswith("slime: ")] == []
    assert any("train slime --config " in line and f"--python {python} --dry-run" in line for line in lines)
    assert any("this machine has 0 GPUs but the run needs 2" in line for line in found(lines, "warning"))
