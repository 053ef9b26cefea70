"""`orl train miles` from this environment against a second one that has miles (a stand-in): two Pythons."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.saved import hugging_face
from tests.two_pythons.environment import STAND_INS, make_environment
from tests.two_pythons.fixtures import Orl
from tests.two_pythons.planning import APART, words_of

pytestmark = pytest.mark.slow  # each starts two processes; tests/slime/test_launch.py covers what both share

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
def flashless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python without a build of flash attention."""
    return str(make_environment(tmp_path_factory.mktemp("flashless") / "env", "miles", flash=False))


@pytest.mark.parametrize("name", COOKBOOK)
def test_a_command_line_of_the_cookbook_gives_the_golden_command(
    orl: Orl, monkeypatch: pytest.MonkeyPatch, flashless: str, name: str
) -> None:
    if name == "wandb":
        monkeypatch.setenv("WANDB_API_KEY", "never-shown")
    asked = flashless if name == "without_flash_attention" else orl.python
    shown = orl.planned(*COOKBOOK[name], python=asked)
    assert "never-shown" not in shown
    orl.assert_golden(name, shown, PYTHON=asked)
    assert list(orl.working.iterdir()) == []


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--", "--rollout-sample-hook-path", "a.b"], "--rollout-sample-hook-path"),  # slime's
        ([*MEGATRON, "--", "--gradient-checkpointing"], "; use --recompute-granularity full"),
        (["--", "--wandb-run-name", "x"], "--wandb-run NAME"),
        (["--", "--lora-rank", "8"], "--train-backend megatron"),
        ([*MEGATRON, "--", "--attn-implementation", "sdpa"], "; use --attention-backend"),
        ([*MEGATRON, "--", "--multi-lora-n-adapters", "2"], "--lora-rank alone"),
        (["--", "--global-batch-size", "3"], "--n-samples"),
        (["--", "--num-steps-per-rollout", "3"], "170 rollouts of an update do not divide"),
        (["--num-gpus", "3", "--tp", "1"], "do not divide over 3 training GPUs"),
        (["--set", "thinking=strip"], "thinking: strip"),
        (["--set", "agent=json:loads"], "`agent` makes several data"),
        ([*MEGATRON, "--set", "thinking=strip", "--", "--partial-rollout"], "which --partial-rollout loses"),
        (["--set", "turn_advantages=true"], "remove `turn_advantages`"),
        # miles asserts a trained token in every row, which a rollout that failed has not
        (["--", "--advantage-estimator", "reinforce_plus_plus"], "reinforce_plus_plus_baseline"),
        (["--", "--fully-async"], "give --async"),
        ([*APART, "--", "--fully-async", "--partial-rollout"], "--partial-rollout: not together"),
        ([*APART, "--", "--fully-async", "--pause-generation-mode", "abort"], "retract is the default"),
        ([*MEGATRON, "--tp", "4", "--", "--context-parallel-size", "2"], "does not divide 4 training GPUs"),
        (["--", "--use-dynamic-batch-size", "--attn-implementation", "sdpa"], "packed sequences see each other"),
        (["--", "--micro-batch-size", "4", "--attn-implementation", "eager"], "packed sequences see each other"),
        ([*EXACT, "--attn-implementation", "sdpa"], "needs one of flash_attention_3, triton"),
        ([*MEGATRON, *EXACT], "--train-backend fsdp"),
        ([*EXACT, "--recompute-logprobs-via-prefill"], "replaces the logprobs of sampling"),
    ],
)
def test_what_miles_would_trip_over_is_refused_with_what_is_right(orl: Orl, argv: list[str], told: str) -> None:
    assert told in orl.refused(*argv)


def test_engines_may_be_wider_than_training_where_training_is_not_split(orl: Orl) -> None:
    wide = ["--async", "--actor-gpus", "1", "--rollout-gpus", "4", "--tp", "4"]
    words = orl.words(*wide)
    assert words[words.index("--rollout-num-gpus-per-engine") + 1] == "4"
    assert "--tp 4 does not divide 1 training and 4" in orl.refused(*wide, *MEGATRON)


def test_parser_refusal_is_the_reported_problem(orl: Orl) -> None:
    plan = orl.planned("--advantage-estimator", "cispo")
    assert (
        "# it would not start on this machine: the parser of miles: argument --advantage-estimator: invalid choice"
        in plan
    )


@pytest.mark.slow
def test_an_attention_that_mixes_packed_sequences_trains_each_by_itself(orl: Orl, flashless: str) -> None:
    for asked, argv in ((flashless, []), (orl.python, ["--", "--attn-implementation", "eager"])):
        plan = orl.planned(*argv, python=asked)
        words = words_of(plan)
        assert "--use-dynamic-batch-size" not in words
        assert words[words.index("--micro-batch-size") + 1] == "1"
        assert "# sequences are not packed" in plan
    assert "--use-dynamic-batch-size" in orl.planned(*MEGATRON, python=flashless)


def test_true_on_policy_with_triton_sets_the_engine_too(orl: Orl) -> None:
    words = orl.words(*EXACT, "--attn-implementation", "triton")
    assert words[words.index("--sglang-attention-backend") + 1] == "triton"
    assert words.count("--attn-implementation") == 1


def test_partial_rollouts_correct_for_older_weights(orl: Orl) -> None:
    assert "--use-tis" in orl.words("--", "--partial-rollout")


def test_mixture_without_replay_is_noted(orl: Orl) -> None:
    """Without weights here, the model's config.json tells that it is one."""
    model = ["--model", str(hugging_face(orl.working / "mixture", num_experts=128))]
    lora = [*MEGATRON, "--", "--lora-rank", "8"]
    option = "--use-rollout-routing-replay"
    for argv, asked in ((model, [*model, "--"]), (lora, lora)):
        plan = orl.planned(*argv)
        assert option not in words_of(plan)
        assert "--use-tis" in words_of(plan)
        assert f"give {option} after `--`" in plan
        given = orl.planned(*asked, option)
        assert option in words_of(given)
        assert "is a mixture" not in given
    assert "is a mixture" not in orl.planned(*model, "--set", "trainer.flags.use-rollout-routing-replay=false")
    assert "is a mixture" not in orl.planned(*MEGATRON)


def test_router_of_miles_forwards_every_field(orl: Orl) -> None:
    option, old = "--use-rollout-routing-replay", shutil.copytree(STAND_INS["miles"], orl.working / "old")
    (old / "sglang_router" / "router.so").write_bytes(b"")
    argv = [*MEGATRON, "--miles-path", str(old), "--", "--use-miles-router"]
    assert option in orl.words(*argv)
    assert option in orl.words(*argv, option)


def test_fault_tolerance_can_be_switched_off(orl: Orl) -> None:
    assert "--use-fault-tolerance" in orl.words()
    off = ["--set", "trainer.flags.use-fault-tolerance=false"]
    assert "--use-fault-tolerance" not in orl.words(*off)


def test_what_miles_serves_itself_is_reached_without_a_proxy(orl: Orl, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "http_proxy": "http://127.0.0.1:9",
        "NO_PROXY": "internal.example, 127.0.0.1",
        "MASTER_ADDR": "10.0.0.1",
        "MILES_HOST_IP": "10.0.0.2",
    }.items():
        monkeypatch.setenv(name, value)
    first = orl.words()[0]
    assert first == "no_proxy=127.0.0.1,localhost,10.0.0.1,10.0.0.2,internal.example"
    monkeypatch.setenv("NO_PROXY", "*")
    assert orl.words()[0] == "no_proxy=*"


def checkpoint(folder: Path, *, fsdp: bool) -> str:
    """A checkpoint that miles saved after 20 steps, as its two backends lay it out."""
    (folder / "iter_0000020" / ("model" if fsdp else "")).mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text("20", encoding="utf-8")
    return str(folder)


@pytest.mark.slow
def test_unreadable_checkpoint_prevents_start(orl: Orl, working: Path) -> None:
    ours, other = checkpoint(working / "ours", fsdp=True), checkpoint(working / "other", fsdp=False)
    hf = working / "hf"
    hf.mkdir()
    (hf / "config.json").write_text("{}", encoding="utf-8")
    starts = "# it would not start on this machine: --load"
    assert starts not in orl.planned("--load", ours)
    refused_by_fsdp = orl.planned("--load", other)
    assert f"{starts} {other}: FSDP did not write" in refused_by_fsdp
    assert f"`orl convert miles {other}`" in refused_by_fsdp
    assert f"{starts} {hf}: name a Hugging Face checkpoint with --model" in orl.planned("--load", str(hf))
    assert starts not in orl.planned("--model", str(hf), "--load", str(hf))
    assert starts not in orl.planned()
    for backend in ([], MEGATRON):
        told = f"{starts} {working}/nowhere: no checkpoint is there"
        assert told in orl.planned(*backend, "--load", "nowhere")
    lost = checkpoint(working / "lost", fsdp=True)
    (working / "lost" / "latest_checkpointed_iteration.txt").write_text("40", encoding="utf-8")
    for backend in ([], MEGATRON):
        assert f"{starts} {lost}: its latest" in orl.planned(*backend, "--load", lost)
    assert f"{starts} {ours}: FSDP wrote" in orl.planned(*MEGATRON, "--load", ours)
    assert starts not in orl.planned(*MEGATRON, "--load", other)
    converted = "run `orl convert miles Qwen/Qwen3-30B-A3B` and name the result with --megatron-ckpt"
    assert converted in orl.planned(*MEGATRON)
    assert converted not in orl.planned(*MEGATRON, "--megatron-ckpt", other)
    assert converted not in orl.planned(*MEGATRON, "--", "--megatron-to-hf-mode", "bridge")


@pytest.mark.usefixtures("cluster")
def test_a_run_goes_on_from_its_own_checkpoint(orl: Orl, working: Path) -> None:
    saved = checkpoint(working / "saved", fsdp=True)
    words = orl.words("--save", saved, "--num-gpus", "1")
    assert words[words.index("--load") + 1] == saved


@pytest.mark.slow
def test_resumed_ppo_goes_on_with_its_critic(orl: Orl, working: Path) -> None:
    """miles takes the actor's checkpoint for the critic's where none is named."""
    ppo = [*MEGATRON, "--model-args", "qwen3-4B", "--advantage-estimator", "ppo"]
    assert "--critic-load" not in orl.words(*ppo)
    saved = working / "before" / "checkpoint"
    for folder in (saved, critic := saved.with_name("checkpoint_critic")):
        folder.mkdir(parents=True)
        (folder / "latest_checkpointed_iteration.txt").write_text("4", encoding="utf-8")
    words = orl.words(*ppo, "--load", str(saved))
    assert words[words.index("--critic-load") + 1] == str(critic)
    words = orl.words(*ppo, "--load", str(saved), "--", "--critic-load", "mine")
    assert [words[place + 1] for place, word in enumerate(words) if word == "--critic-load"] == ["mine"]


def test_miles_rollout_functions_of_v1_are_refused(orl: Orl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILES_USE_LEGACY_ROLLOUT_V1", "1")
    assert "MILES_USE_LEGACY_ROLLOUT_V1" in orl.refused()
