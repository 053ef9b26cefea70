"""Options that `orl train slime` sets for an advantage estimator, against a stand-in of slime."""

from __future__ import annotations

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType

import pytest
from orl_core.estimators import ESTIMATORS
from orl_launcher.main import main
from orl_rollout.run_folder.checkpoint import NOTE

from tests.slime.host import of_slime
from tests.slime.test_launch import checkpoint
from tests.two_pythons import planning
from tests.two_pythons.planning import words_of

pytestmark = pytest.mark.usefixtures("working")
SHAPE = ["--model-args", "qwen3-0.6B"]
CRITIC, ROLES, ADVANTAGES = "checkpoint_critic", "--megatron-config-path", "--custom-advantage-function-path"


def megatron(folder: Path, step: str) -> Path:
    """A checkpoint of Megatron: `release` is a converted model, a number a step of training."""
    (folder / (step if step == "release" else f"iter_{int(step):07d}")).mkdir(parents=True)
    (folder / "latest_checkpointed_iteration.txt").write_text(step, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("estimator", "normalised", "hooked", "roles"),
    [
        ("grpo", False, False, False),
        pytest.param("reinforce_plus_plus", True, True, False, marks=pytest.mark.slow),
        pytest.param("reinforce_plus_plus_baseline", True, False, False, marks=pytest.mark.slow),
        ("ppo", True, False, True),
    ],
)
def test_estimator_sets_what_slime_needs(
    capsys: pytest.CaptureFixture[str], python: str, estimator: str, normalised: bool, hooked: bool, roles: bool
) -> None:
    before = words_of(planning.planned(capsys, "slime", python, *SHAPE, "--advantage-estimator", estimator))
    after = words_of(planning.planned(capsys, "slime", python, *SHAPE, "--", "--advantage-estimator", estimator))
    for words in (before, after):
        assert words[words.index("--advantage-estimator") + 1] == estimator
        assert ("--normalize-advantages" in words) == normalised
        assert (ADVANTAGES in words) == hooked
        assert (ROLES in words) == roles


def test_own_advantage_function_replaces_ours(capsys: pytest.CaptureFixture[str], python: str) -> None:
    argv = [*SHAPE, "--advantage-estimator", "reinforce_plus_plus", "--", ADVANTAGES, "mine.advantages"]
    words = words_of(planning.planned(capsys, "slime", python, *argv))
    assert [words[place + 1] for place, word in enumerate(words) if word == ADVANTAGES] == ["mine.advantages"]


def test_ppo_needs_a_converted_model(capsys: pytest.CaptureFixture[str], python: str, working: Path) -> None:
    """slime's value head has a bias, which its reader of Hugging Face checkpoints does not know."""
    ppo = [*SHAPE, "--advantage-estimator", "ppo"]
    model = str(checkpoint(working / "model"))
    told = f"--ref-load {model}: slime cannot start PPO's critic from a Hugging Face checkpoint"
    assert told in planning.planned(capsys, "slime", python, "--model", model, *ppo)
    ppo += ["--megatron-ckpt", str(megatron(working / "converted", "release"))]
    assert "load " not in planning.planned(capsys, "slime", python, "--model", model, *ppo).partition("\n# ")[2]


@pytest.mark.slime
def test_real_slime_reads_no_critic_of_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("slime.backends.megatron_utils")  # its own __init__ needs Megatron
    package.__path__ = [str(Path(of_slime("slime.__file__")).parent / "backends" / "megatron_utils")]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    reader = importlib.import_module(f"{package.__name__}.hf_to_megatron.qwen")
    with pytest.raises(KeyError, match=r"output_layer\.bias"):
        reader.qwen_hf_tensor("module.output_layer.bias", None, Namespace(tie_word_embeddings=True))


def test_resumed_ppo_needs_its_critic(capsys: pytest.CaptureFixture[str], python: str, working: Path) -> None:
    before = megatron(working / "before" / "checkpoint", "4")
    ppo = [*SHAPE, "--advantage-estimator", "ppo", "--load", str(before)]
    assert f"no critic is in {before.with_name(CRITIC)}" in planning.refused(capsys, "slime", python, *ppo)
    megatron(before.with_name(CRITIC), "4")
    assert ROLES in words_of(planning.planned(capsys, "slime", python, *ppo))


def test_own_roles_need_a_folder_for_the_critic(capsys: pytest.CaptureFixture[str], python: str, working: Path) -> None:
    roles = working / "roles.yaml"
    ppo = [*SHAPE, "--advantage-estimator", "ppo", "--", ROLES, str(roles)]
    roles.write_text("megatron: [{role: critic, overrides: {lr: 1e-5}}]\n", encoding="utf-8")
    assert "`save` of its own" in planning.refused(capsys, "slime", python, *ppo)
    for key in ("overrides", "args"):
        roles.write_text(f"megatron: [{{role: critic, {key}: {{save: elsewhere}}}}]\n", encoding="utf-8")
        words = words_of(planning.planned(capsys, "slime", python, *ppo))
        assert [words[place + 1] for place, word in enumerate(words) if word == ROLES] == [str(roles)]


@pytest.mark.slow
def test_critic_is_saved_and_noted_beside_the_actor(
    monkeypatch: pytest.MonkeyPatch, python: str, working: Path
) -> None:
    (working / "config.yaml").write_text("environments: {Org/Env: {}}\n", encoding="utf-8")
    (working / "tasks.jsonl").write_text('{"prompt": "?", "label": ""}\n', encoding="utf-8")
    model, converted = checkpoint(working / "model"), megatron(working / "converted", "release")
    options = ["--config", "config.yaml", "--task-data", "tasks.jsonl", "--model", str(model), "--num-gpus", "1"]
    argv = ["train", "slime", *options, "--python", python, *SHAPE, "--advantage-estimator", "ppo"]
    runs = working / "runs"
    with planning.cluster(monkeypatch):
        assert main([*argv, "--name", "first", "--megatron-ckpt", str(converted)]) == 0
        saved = runs / "first" / "checkpoint"
        assert roles_of(runs / "first") == {"save": str(saved.with_name(CRITIC))}
        megatron(saved, "2")
        megatron(saved.with_name(CRITIC), "2")
        assert main([*argv, "--name", "second", "--load", str(saved), "--save", str(saved)]) == 0
    assert roles_of(runs / "second") == dict.fromkeys(("save", "load"), str(saved.with_name(CRITIC)))
    noted = [json.loads((folder / NOTE).read_text("utf-8")) for folder in (saved, saved.with_name(CRITIC))]
    assert [(note["critic"], note["trainer"], note["model"]) for note in noted] == [
        (False, "slime", str(model)),
        (True, "slime", str(model)),
    ]


def roles_of(run: Path) -> dict[str, str]:
    """The critic's overrides in the file that slime was given."""
    (role,) = json.loads((run / "megatron.json").read_text(encoding="utf-8"))["megatron"]
    assert role["role"] == "critic"
    return role["overrides"]


@pytest.mark.parametrize("argv", [("--advantage-estimator", "own"), ("--", "--advantage-estimator", "own")])
def test_unknown_estimator_is_refused_before_the_start(
    capsys: pytest.CaptureFixture[str], python: str, argv: tuple[str, ...]
) -> None:
    told = planning.refused(capsys, "slime", python, *SHAPE, *argv)
    assert "own" in told
    assert all(name in told for name in ESTIMATORS)


def test_each_seed_is_another_seed_of_megatron(capsys: pytest.CaptureFixture[str], python: str) -> None:
    seeds = []
    for seed in ("0", "1", "1234"):
        words = words_of(planning.planned(capsys, "slime", python, *SHAPE, "--seed", seed))
        seeds.append(int(words[words.index("--seed") + 1]))
    assert len(set(seeds)) == 3
    assert min(seeds) > 0, "Megatron takes no 0"
