"""Options, keys, variables and defaults of the OpenReward cookbook exist in orl; docs/cookbook.md names what exists."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT, Struct, structs
from orl_core.config import EnvironmentConfig, RolloutConfig, RunConfig, TrainerConfig
from orl_core.limits import TrainOn
from orl_launcher import trainers
from orl_launcher.cli import Parser

from tests.kit.markdown import ROOT, quoted

# The cookbook at commit f9580a3 (training/slime and miles), without what has another name in orl.
THEIRS: dict[str, Any] = json.loads((ROOT / "tests" / "golden" / "cookbook.json").read_text("utf-8"))

COMMANDS = ("train", "prepare", "rollout", "show", "doctor", "upload", "install-into", "convert")
GOLDEN = {
    trainer: "".join(path.read_text("utf-8") for path in sorted((ROOT / "tests" / "golden" / trainer).glob("*.txt")))
    for trainer in ("slime", "miles")
}
OPTION, KEY = re.compile(r"--[a-z][a-z0-9-]*"), re.compile(r"[a-z_]+(\.[A-Za-z_]+)+")


def options_of(command: str) -> set[str]:
    names = {"--"}
    for trainer in trainers.installed():
        names |= {*OPTION.findall(Parser(command, [trainer]).format_help())}
    return names


def keys_of(section: type[Struct], prefix: str) -> Iterator[tuple[str, structs.FieldInfo]]:
    for field in structs.fields(section):
        yield f"{prefix}{field.encode_name}", field


PARTS: dict[str, type[Struct]] = {
    "": RunConfig,
    "environments.NAME.": EnvironmentConfig,
    "rollout.": RolloutConfig,
    "rollout.train_on.": TrainOn,
    "trainer.": TrainerConfig,
    **{f"trainer.{name}.": section for name, section in trainers.sections().items()},
}
FIELDS = {key: field for prefix, section in PARTS.items() for key, field in keys_of(section, prefix)}


@pytest.mark.parametrize(("script", "command"), [("run.sh", "train"), ("prepare_tasks.py", "prepare")])
def test_options_keep_their_names(script: str, command: str) -> None:
    assert {*THEIRS[f"options of {script}"]} <= options_of(command)


def test_options_of_trainers_are_those_of_our_command_lines() -> None:
    words = {word for text in GOLDEN.values() for word in text.split()}
    assert {*THEIRS["options of train.py"]} <= words


def test_keys_exist_and_defaults_are_the_same() -> None:
    assert {*THEIRS["keys of train_config.yaml"]} <= FIELDS.keys()
    for key, theirs in THEIRS["defaults of keys"].items():
        field = FIELDS[key]
        value = field.default if field.default_factory is NODEFAULT else field.default_factory()
        assert msgspec.json.decode(msgspec.json.encode(value)) == theirs, key


@pytest.mark.parametrize("trainer", GOLDEN)
def test_command_line_without_options_has_their_values(trainer: str) -> None:
    words = shlex.split((ROOT / "tests" / "golden" / trainer / "defaults.txt").read_text("utf-8"), comments=True)
    for option, theirs in THEIRS["defaults of train.py"][trainer].items():
        if option in words:
            ours = words[words.index(option) + 1]
            assert ours == theirs or float(ours) == float(theirs), option


def test_variables_are_read() -> None:
    sources = [path for place in ("packages", "apps", "configs") for path in (ROOT / place).rglob("*.[py][ya]*")]
    text = "\n".join(path.read_text("utf-8") for path in sources if path.is_file() and path.suffix in (".py", ".yaml"))
    assert [name for name in THEIRS["variables"] if name not in text] == []


def test_every_name_in_the_text_exists() -> None:
    known = set[str]().union(*map(options_of, COMMANDS)) | {"--extra"} | {*OPTION.findall(" ".join(GOLDEN.values()))}
    for text in quoted((ROOT / "docs" / "cookbook.md").read_text("utf-8")):
        assert {*OPTION.findall(text)} <= known, text
        key = text.partition(": ")[0]
        if KEY.fullmatch(key) and key.partition(".")[0] in ("environments", "rollout", "trainer"):
            assert key in FIELDS, text
