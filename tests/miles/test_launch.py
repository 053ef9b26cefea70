"""`orl train miles` from this environment against a second one that has miles (a stand-in): two Pythons."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from orl_launcher.main import main
from orl_rollout.run_folder.checkpoint import checkpoint_in

from tests.kit.saved import hugging_face, saved
from tests.miles.environment import STAND_IN, make_environment
from tests.two_pythons import planning
from tests.two_pythons.environment import ROOT
from tests.two_pythons.planning import APART, WHODUNIT, words_of

pytestmark = pytest.mark.slow  # each starts two processes; tests/slime/test_launch.py covers what both share

GOLDEN = ROOT / "tests" / "golden" / "miles"
QUICK_START = [
    *("--model", "/path/to/Qwen3-0.6B-Instruct/", "--num-gpus", "4", "--tp", "1"),
    *("--rollout-batch-size", "4", "--n-samples", "2", "--num-rollout", "10"),
]
MEGATRON = ["--train-backend", "megatron"]
EXACT = ["--", "--true-on-policy-mode"]
KL = ["--use-kl-loss", "--kl-loss-coef", "0.01"]

# Every command line of the cookbook's README for miles, its `bash run.sh` replaced by `just train-miles --config C`.
# Context parallelism is Megatron's in miles now.
COOKBOOK = {
    "quick_start": QUICK_START,
    "defaults": [],
    "different_model": ["--model", "Qwen/Qwen3-4B"],
    "adjust_gpu_count": ["--num-gpus", "8", "--tp", "4"],
    "tune_training": ["--lr", "5e-6", "--n-samples", "8", "--rollout-batch-size", "16"],
    "megatron_backend": [*MEGATRON, "--megatron-ckpt", "./megatron-ckpt/"],
    "arbitrary_arguments": ["--", *KL],
    "arbitrary_arguments_megatron": [*MEGATRON, "--", "--context-parallel-size", "2", *KL],
    "resume": ["--load", "/path/to/checkpoints/"],
    "wandb": ["--wandb-project", "miles-openreward", "--wandb-run", "first try"],
    "asynchronous": [*APART, "--advantage-estimator", "gspo"],
    "fully_asynchronous": [*APART, "--", "--fully-async", "--max-weight-staleness", "2"],
    "true_on_policy": ["--", "--true-on-policy-mode"],
    "without_flash_attention": QUICK_START,
}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_environment(tmp_path_factory.mktemp("second") / "env"))


@pytest.fixture(scope="module")
def flashless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python without a build of flash attention."""
    return str(make_environment(tmp_path_factory.mktemp("flashless") / "env", flash=False))


@pytest.fixture(autouse=True)
def working(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working folder, and none of the machine's own keys, proxies and clusters."""
    return planning.alone(monkeypatch, tmp_path, "MILES_USE_LEGACY_ROLLOUT_V1")


def planned(capsys: pytest.CaptureFixture[str], python: str, *argv: str, config: str = WHODUNIT) -> str:
    """Return what a dry run prints."""
    return planning.planned(capsys, "miles", python, *argv, config=config)


def refused(capsys: pytest.CaptureFixture[str], python: str, *argv: str, config: str = WHODUNIT) -> str:
    return planning.refused(capsys, "miles", python, *argv, config=config)


@pytest.mark.parametrize("name", COOKBOOK)
def test_a_command_line_of_the_cookbook_gives_the_golden_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, python: str, flashless: str, name: str
) -> None:
    if name == "wandb":
        monkeypatch.setenv("WANDB_API_KEY", "never-shown")
    asked = flashless if name == "without_flash_attention" else python
    shown = planned(capsys, asked, *COOKBOOK[name])
    for real, stands_for in ((asked, "PYTHON"), (str(STAND_IN), "MILES"), (str(Path.cwd()), "HERE")):
        shown = shown.replace(real, stands_for)
    assert "never-shown" not in shown
    golden = GOLDEN / f"{name}.txt"
    assert shown == golden.read_text(encoding="utf-8")
    assert list(Path.cwd().iterdir()) == []


def test_own_generate_function_plays_plain_rows_alone(capsys: pytest.CaptureFixture[str], python: str) -> None:
    argv = ["--model", "Qwen/Qwen3-4B", "--", "--custom-generate-function-path", "custom_generate.generate"]
    shown = planned(capsys, python, *argv, config=planning.plain(Path.cwd()))
    for real, stands_for in ((python, "PYTHON"), (str(STAND_IN), "MILES"), (str(Path.cwd()), "HERE")):
        shown = shown.replace(real, stands_for)
    assert shown == (GOLDEN / "own_generate.txt").read_text(encoding="utf-8")
    assert "--agent" in refused(capsys, python, *argv)


@pytest.mark.parametrize("name", ["weight_check", "weight_check_after_step"])
def test_weights_are_compared_at_first_start_alone(capsys: pytest.CaptureFixture[str], python: str, name: str) -> None:
    """The first sync must leave engines the weights that they have loaded; after a step they are others."""
    hugging_face(Path.cwd() / "model", dtype="bfloat16")
    argv = ["--model", "model", "--num-gpus", "4", "--tp", "1"]
    if name == "weight_check_after_step":
        saved(Path.cwd() / "runs" / "run" / "checkpoint", 19, fsdp=True)
    shown = planned(capsys, python, *argv).partition("\n# ")[0]
    model = str(Path.cwd() / "model")
    pairs = ((python, "PYTHON"), (str(STAND_IN), "MILES"), (model, "/path/to/Qwen3-0.6B"), (str(Path.cwd()), "HERE"))
    for real, stands_for in pairs:
        shown = shown.replace(real, stands_for)
    assert shown + "\n" == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


def test_old_version_gets_no_weight_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    hugging_face(Path.cwd() / "model", dtype="bfloat16")
    argv = ["--model", "model"]
    assert "--check-weight-update-equal" in planned(capsys, python, *argv)
    off = ["--set", "trainer.flags.check-weight-update-equal=false"]
    assert "check-weight" not in planned(capsys, python, *argv, *off)
    monkeypatch.setenv("STAND_IN_LACKS", "--check-weight-update-equal")
    plan = planned(capsys, python, *argv)
    assert "check-weight" not in plan
    assert "not checked by the parser" not in plan
    assert "check-weight-update-equal" in refused(capsys, python, *argv, "--", "--check-weight-update-equal")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--", "--use-kl-los"], "did you mean --use-kl-loss?"),  # which miles would take for the option
        (["--", "--wait-decay", "1"], "did you mean --weight-decay?"),
        (["--", "--rollout-sample-hook-path", "a.b"], "--rollout-sample-hook-path"),  # slime's
        (["--", "--recompute-granularity", "full"], "--recompute-granularity"),
        (["--", "--lora-rank", "8"], "--train-backend megatron"),
        ([*MEGATRON, "--", "--attn-implementation", "sdpa"], "--attn-implementation"),
        (["--", "--group-rm"], "group_reward"),
        (["--", "--rollout-external"], "--actor-gpus and --rollout-gpus"),
        (["--", "--eval-num-gpus", "2"], "the engines of training evaluate"),
        ([*MEGATRON, "--", "--multi-lora-n-adapters", "2"], "--lora-rank alone"),
        (["--", "--use-session-server"], "--agent"),
        (["--", "--use-opd", "--opd-type", "sglang"], "--opd-teacher-load"),
        (["--", "--prompt-data", "x"], "--task-data"),
        (["--num-rollout", "9", "--", "--num-epoch", "2"], "--num-epoch 2: with --num-rollout"),
        (["--", "--global-batch-size", "3"], "--n-samples"),
        (["--", "--num-steps-per-rollout", "3"], "170 rollouts of an update do not divide"),
        (["--num-gpus", "3", "--tp", "1"], "do not divide over 3 training GPUs"),
        (["--set", "thinking=strip"], "thinking: strip"),
        (["--set", "agent=json:loads"], "`agent` makes several data"),
        ([*MEGATRON, "--set", "thinking=strip", "--", "--partial-rollout"], "which --partial-rollout loses"),
        (["--", "--rollout-max-response-len", "64"], "rollout.turn_tokens"),
        (["--", "--rollout-max-context-len=64"], "rollout.context_tokens"),
        (["--", "--fully-async"], "give --async"),
        ([*APART, "--", "--fully-async", "--partial-rollout"], "--partial-rollout: not together"),
        ([*APART, "--", "--fully-async", "--pause-generation-mode", "abort"], "retract is the default"),
        (["--", "--global-batch-size", "1k"], "--global-batch-size 1k: expected a whole number"),
        (["--actor-gpus", "4"], "give both"),
        ([*MEGATRON, "--tp", "4", "--", "--context-parallel-size", "2"], "does not divide 4 training GPUs"),
        ([*MEGATRON, "--", "--context-parallel-size", "two"], "expected a whole number"),
        ([*MEGATRON, "--model-args", "qwen3-4b"], "did you mean qwen3-4B?"),
        ([*MEGATRON, "--model", "/models/Unheard-1B"], "--model-args"),
        (["--", "--use-dynamic-batch-size", "--attn-implementation", "sdpa"], "packed sequences see each other"),
        (["--", "--micro-batch-size", "4", "--attn-implementation", "eager"], "packed sequences see each other"),
        ([*EXACT, "--attn-implementation", "sdpa"], "needs one of flash_attention_3, triton"),
        ([*MEGATRON, *EXACT], "--train-backend fsdp"),
        ([*EXACT, "--recompute-logprobs-via-prefill"], "replaces the logprobs of sampling"),
    ],
)
def test_what_miles_would_trip_over_is_refused_with_what_is_right(
    capsys: pytest.CaptureFixture[str], python: str, argv: list[str], told: str
) -> None:
    assert told in refused(capsys, python, *argv)


def test_engines_may_be_wider_than_training_where_training_is_not_split(
    capsys: pytest.CaptureFixture[str], python: str
) -> None:
    wide = ["--async", "--actor-gpus", "1", "--rollout-gpus", "4", "--tp", "4"]
    words = words_of(planned(capsys, python, *wide))
    assert words[words.index("--rollout-num-gpus-per-engine") + 1] == "4"
    assert "--tp 4 does not divide 1 training and 4" in refused(capsys, python, *wide, *MEGATRON)


def test_parser_refusal_is_the_reported_problem(capsys: pytest.CaptureFixture[str], python: str) -> None:
    plan = planned(capsys, python, "--advantage-estimator", "cispo")
    assert (
        "# it would not start on this machine: the parser of miles: argument --advantage-estimator: invalid choice"
        in plan
    )


def test_unknown_estimator_is_refused_before_the_start(capsys: pytest.CaptureFixture[str], python: str) -> None:
    assert "own" in refused(capsys, python, "--advantage-estimator", "own")


@pytest.mark.slow
def test_an_attention_that_mixes_packed_sequences_trains_each_by_itself(
    capsys: pytest.CaptureFixture[str], python: str, flashless: str
) -> None:
    for asked, argv in ((flashless, []), (python, ["--", "--attn-implementation", "eager"])):
        plan = planned(capsys, asked, *argv)
        words = words_of(plan)
        assert "--use-dynamic-batch-size" not in words
        assert words[words.index("--micro-batch-size") + 1] == "1"
        assert "# sequences are not packed" in plan
    assert "--use-dynamic-batch-size" in words_of(planned(capsys, flashless, *MEGATRON))


def test_true_on_policy_with_triton_sets_the_engine_too(capsys: pytest.CaptureFixture[str], python: str) -> None:
    words = words_of(planned(capsys, python, *EXACT, "--attn-implementation", "triton"))
    assert words[words.index("--sglang-attention-backend") + 1] == "triton"
    assert words.count("--attn-implementation") == 1


def test_partial_rollouts_correct_for_older_weights(capsys: pytest.CaptureFixture[str], python: str) -> None:
    partial = ["--", "--partial-rollout"]
    plan = planned(capsys, python, *partial)
    assert "--use-tis" in words_of(plan)
    assert "begin again" not in plan
    assert "begin again" in planned(capsys, python, *partial, "--mask-offpolicy-in-partial-rollout")
    limit = ["--set", "environments.GeneralReasoning/WhoDunIt.max_concurrency=4"]
    assert "`max_concurrency` of GeneralReasoning/WhoDunIt" in planned(capsys, python, *limit, *partial)


@pytest.mark.parametrize(("argv", "rival"), planning.OVERRULED)
def test_default_that_would_overrule_an_option_is_left_out(
    capsys: pytest.CaptureFixture[str], python: str, argv: list[str], rival: str
) -> None:
    planning.leaves_out(capsys, "miles", python, argv, rival)


def test_fault_tolerance_can_be_switched_off(capsys: pytest.CaptureFixture[str], python: str) -> None:
    assert "--use-fault-tolerance" in words_of(planned(capsys, python))
    off = ["--set", "trainer.flags.use-fault-tolerance=false"]
    assert "--use-fault-tolerance" not in words_of(planned(capsys, python, *off))


@pytest.mark.slow
def test_flags_in_the_file_and_on_the_command_line_give_one_command(
    capsys: pytest.CaptureFixture[str], python: str, working: Path
) -> None:
    """And the file says of the trainer nothing but its name."""
    flags = working / "flags.yaml"
    told = 'flags: {"--use-kl-loss": true, kl_loss_coef: 0.01, "--eps-clip": 0.3}'
    text = Path(WHODUNIT).read_text(encoding="utf-8")
    flags.write_text(text.replace("  backend: slime\n", f"  backend: miles\n  {told}\n"), encoding="utf-8")
    filed = planned(capsys, python, config=str(flags))
    given = ["--", "--use-kl-loss", "--kl-loss-coef", "0.01", "--eps-clip", "0.3"]
    assert words_of(filed) == words_of(planned(capsys, python, *given))
    options = ["--config", str(flags), "--python", python, "--name", "run", "--dry-run"]
    assert main(["train", *options]) == 1
    assert capsys.readouterr().out == filed


def test_what_miles_serves_itself_is_reached_without_a_proxy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    for name, value in {
        "http_proxy": "http://127.0.0.1:9",
        "NO_PROXY": "internal.example, 127.0.0.1",
        "MASTER_ADDR": "10.0.0.1",
        "MILES_HOST_IP": "10.0.0.2",
    }.items():
        monkeypatch.setenv(name, value)
    first = words_of(planned(capsys, python))[0]
    assert first == "no_proxy=127.0.0.1,localhost,10.0.0.1,10.0.0.2,internal.example"
    monkeypatch.setenv("NO_PROXY", "*")
    assert words_of(planned(capsys, python))[0] == "no_proxy=*"


def checkpoint(folder: Path, *, fsdp: bool) -> str:
    """A checkpoint that miles saved after 20 steps, as its two backends lay it out."""
    (folder / "iter_0000020" / ("model" if fsdp else "")).mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("20", encoding="utf-8")
    return str(folder)


@pytest.mark.slow
def test_unreadable_checkpoint_prevents_start(capsys: pytest.CaptureFixture[str], python: str, working: Path) -> None:
    ours, other = checkpoint(working / "ours", fsdp=True), checkpoint(working / "other", fsdp=False)
    hf = working / "hf"
    hf.mkdir()
    (hf / "config.json").write_text("{}", encoding="utf-8")
    starts = "# it would not start on this machine: --load"
    assert starts not in planned(capsys, python, "--load", ours)
    refused_by_fsdp = planned(capsys, python, "--load", other)
    assert f"{starts} {other}: FSDP did not write" in refused_by_fsdp
    assert f"`orl convert miles {other}`" in refused_by_fsdp
    assert f"{starts} {hf}: name a Hugging Face checkpoint with --model" in planned(capsys, python, "--load", str(hf))
    assert starts not in planned(capsys, python, "--model", str(hf), "--load", str(hf))
    assert starts not in planned(capsys, python)
    for backend in ([], MEGATRON):
        told = f"{starts} {working}/nowhere: no checkpoint is there"
        assert told in planned(capsys, python, *backend, "--load", "nowhere")
    inner = f"{ours}/iter_0000020"
    assert f"{starts} {inner}: no checkpoint is there, training would start anew: did you mean {ours}?" in planned(
        capsys, python, "--load", inner
    )
    lost = checkpoint(working / "lost", fsdp=True)
    (working / "lost" / "latest_checkpointed_iteration.txt").write_text("40", encoding="utf-8")
    for backend in ([], MEGATRON):
        assert f"{starts} {lost}: its latest" in planned(capsys, python, *backend, "--load", lost)
    assert f"{starts} {ours}: FSDP wrote" in planned(capsys, python, *MEGATRON, "--load", ours)
    assert starts not in planned(capsys, python, *MEGATRON, "--load", other)
    converted = "run `orl convert miles FOLDER` and name the result with --megatron-ckpt"
    assert converted in planned(capsys, python, *MEGATRON)
    assert converted not in planned(capsys, python, *MEGATRON, "--megatron-ckpt", other)
    assert converted not in planned(capsys, python, *MEGATRON, "--", "--megatron-to-hf-mode", "bridge")


def trained(python: str, working: Path, *argv: str) -> int:
    """The exit code of a run on no GPU at all, in the stand-in."""
    config = working / "elsewhere.yaml"
    config.write_text("environments: {Org/Env: {}}\n", encoding="utf-8")
    (working / "tasks.jsonl").write_text('{"prompt": "?", "label": ""}\n', encoding="utf-8")
    options = ["--config", str(config), "--task-data", "tasks.jsonl", "--model", "model", "--num-gpus", "1"]
    return main(["train", "miles", *options, "--python", python, "--name", "run", *argv])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster that runs already, so that none is started; and a machine that says it has a GPU."""
    with planning.cluster(monkeypatch):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_run_passes_config_and_keeps_secrets_in_environment(
    monkeypatch: pytest.MonkeyPatch, python: str, working: Path, backend: str
) -> None:
    monkeypatch.setenv("OPENREWARD_API_KEY", "orl-secret-key")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    megatron = ["--model-args", str(STAND_IN / "scripts" / "models" / "qwen3-4B.py"), "--megatron-ckpt"]
    chosen = [*megatron, checkpoint(working / "converted", fsdp=False)] if backend == "megatron" else []
    assert trained(python, working, "--train-backend", backend, *chosen) == 0
    folder = working / "runs" / "run"
    seen = json.loads((folder / "seen.json").read_text(encoding="utf-8"))
    assert seen["environment"]["OPENREWARD_API_KEY"] == "orl-secret-key"
    assert "orl-secret-key" not in " ".join(seen["argv"])
    assert ("CUDA_DEVICE_MAX_CONNECTIONS" in seen["environment"]) == (backend == "megatron")
    assert ("--rotary-base" in seen["argv"]) == (backend == "megatron")
    assert json.loads((folder / "miles.json").read_text(encoding="utf-8"))["orl_folder"] == str(folder)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (summary["steps"], summary["success_before"], summary["success_after"]) == (1, 0.25, 0.75)
    noted = checkpoint_in(folder / "checkpoint")
    assert noted is not None
    assert (noted.format, noted.trainer, noted.step) == (backend, "miles", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_run_that_dies_of_memory_names_the_levers_of_its_backend(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, python: str, working: Path
) -> None:
    monkeypatch.setenv("STAND_IN_ENDS", "memory")
    assert trained(python, working, "--memory-retries", "0") == 1
    told = capsys.readouterr().err
    assert "CUDA out of memory" in told
    assert "--fsdp-cpu-offload" in told
    assert "--optimizer-cpu-offload" not in told


@pytest.mark.usefixtures("cluster")
def test_a_run_goes_on_from_its_own_checkpoint(capsys: pytest.CaptureFixture[str], python: str, working: Path) -> None:
    saved = checkpoint(working / "saved", fsdp=True)
    words = words_of(planned(capsys, python, "--save", saved, "--num-gpus", "1"))
    assert words[words.index("--load") + 1] == saved


def test_a_python_without_miles_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "/usr/bin/env: cannot be asked for miles" in refused(capsys, "/usr/bin/env")


def test_reinforce_plus_plus_is_refused(capsys: pytest.CaptureFixture[str], python: str) -> None:
    """miles asserts a trained token in every row, which a rollout that failed has not."""
    told = refused(capsys, python, "--", "--advantage-estimator", "reinforce_plus_plus")
    assert "reinforce_plus_plus_baseline" in told


@pytest.mark.slow
def test_resumed_ppo_goes_on_with_its_critic(capsys: pytest.CaptureFixture[str], python: str, working: Path) -> None:
    """miles takes the actor's checkpoint for the critic's where none is named."""
    ppo = [*MEGATRON, "--model-args", "qwen3-4B", "--advantage-estimator", "ppo"]
    assert "--critic-load" not in words_of(planned(capsys, python, *ppo))
    saved = working / "before" / "checkpoint"
    for folder in (saved, critic := saved.with_name("checkpoint_critic")):
        folder.mkdir(parents=True)
        (folder / "latest_checkpointed_iteration.txt").write_text("4", encoding="utf-8")
    words = words_of(planned(capsys, python, *ppo, "--load", str(saved)))
    assert words[words.index("--critic-load") + 1] == str(critic)
    words = words_of(planned(capsys, python, *ppo, "--load", str(saved), "--", "--critic-load", "mine"))
    assert [words[place + 1] for place, word in enumerate(words) if word == "--critic-load"] == ["mine"]


def test_turn_advantages_are_refused_by_miles(capsys: pytest.CaptureFixture[str], python: str) -> None:
    assert "remove `turn_advantages`" in refused(capsys, python, "--set", "turn_advantages=true")


def test_miles_rollout_functions_of_v1_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, python: str
) -> None:
    monkeypatch.setenv("MILES_USE_LEGACY_ROLLOUT_V1", "1")
    assert "MILES_USE_LEGACY_ROLLOUT_V1" in refused(capsys, python)
