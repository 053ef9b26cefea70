"""docs/evidence/cookbook.md names every option, key and variable of the cookbook; what it names of orl exists."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import msgspec
import pytest
import yaml
from msgspec import NODEFAULT, Struct, structs
from orl_core.config import EnvironmentConfig, RolloutConfig, RunConfig, TrainerConfig
from orl_core.limits import TrainOn
from orl_launcher import trainers
from orl_launcher.cli import Parser

from tests.kit.markdown import ROOT, quoted, rows_of

GUIDE, PAGE = ROOT / "docs" / "cookbook.md", ROOT / "docs" / "evidence" / "cookbook.md"
SECTIONS = rows_of(PAGE)
RUN, TRAIN_PY, KEYS = "Options of run.sh", "Options that run.sh gives to train.py", "Keys of train_config.yaml"
PREPARE, VARIABLES, RAY = "Options of prepare_tasks.py", "Environment variables", "Ray"
TINKER = "Keys of tinker-config.yaml"

# Names of the cookbook at commit f9580a3 (training/slime, miles and tinker), by the section of the page.
THEIRS: dict[str, list[str]] = json.loads((ROOT / "tests" / "golden" / "cookbook.json").read_text("utf-8"))

COMMANDS = ("train", "prepare", "rollout", "show", "doctor", "upload", "install-into")
GOLDEN = {
    trainer: "".join(path.read_text("utf-8") for path in sorted((ROOT / "tests" / "golden" / trainer).glob("*.txt")))
    for trainer in ("slime", "miles")
}
OPTION, KEY = re.compile(r"--[a-z][a-z0-9-]*"), re.compile(r"[a-z_]+(\.[A-Za-z_]+)+")
TRAIN_NAMES = {
    "--model": "--hf-checkpoint",
    "--n-samples": "--n-samples-per-prompt",
    "--temperature": "--rollout-temperature",
}
TRAIN_NAMES["--max-response-len"] = "--rollout-max-response-len"


def options_of(command: str) -> set[str]:
    names = {"--"}
    for trainer in trainers.installed():
        names |= {*OPTION.findall(Parser(command, [trainer]).format_help())}
    return names


OURS = set[str]().union(*map(options_of, COMMANDS))
THEIR_OPTIONS = {name for names in THEIRS.values() for name in names if name.startswith("--")}


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


@pytest.mark.parametrize("section", [RUN, TRAIN_PY, KEYS, TINKER, PREPARE, VARIABLES])
def test_every_name_of_the_cookbook_is_listed(section: str) -> None:
    column = "option" if section == TRAIN_PY else "cookbook"
    listed = [name for row in SECTIONS[section] for name in quoted(row[column])]
    assert sorted(listed) == sorted(THEIRS[section])


def test_every_option_of_ray_is_listed() -> None:
    listed = OPTION.findall(" ".join(row["cookbook"] for row in SECTIONS[RAY]))
    assert {*listed} == {*THEIRS[RAY]}


@pytest.mark.parametrize(("section", "command"), [(RUN, "train"), (PREPARE, "prepare")])
def test_options_of_orl_exist(section: str, command: str) -> None:  # shows A10 A11 D14
    named = [name for row in SECTIONS[section] for name in quoted(row["orl"])]
    assert len(named) == len(SECTIONS[section])
    assert {*named} <= options_of(command)


def test_options_of_trainers_are_those_of_our_command_lines() -> None:  # shows B29
    for row in SECTIONS[TRAIN_PY]:
        for name in quoted(row["orl"]):
            assert any(f" {name} " in text.replace("\n", " ") for text in GOLDEN.values()), name


def test_keys_of_orl_exist() -> None:
    assert [name for row in SECTIONS[KEYS] for name in quoted(row["orl"])] == THEIRS[KEYS]
    assert {*THEIRS[KEYS]} <= FIELDS.keys()


def test_variables_of_orl_are_read() -> None:  # shows E2
    sources = [path for place in ("packages", "apps", "configs") for path in (ROOT / place).rglob("*.[py][ya]*")]
    text = "\n".join(path.read_text("utf-8") for path in sources if path.is_file() and path.suffix in (".py", ".yaml"))
    for row in SECTIONS[VARIABLES]:
        assert all(name in text for name in quoted(row["orl"])), row


def test_every_name_in_the_text_exists() -> None:
    """Options and keys in differences and in paragraphs count, too."""
    known = OURS | THEIR_OPTIONS | {"--extra"} | {*OPTION.findall(" ".join(GOLDEN.values()))}
    for text in quoted(GUIDE.read_text("utf-8") + PAGE.read_text("utf-8")):
        assert {*OPTION.findall(text)} <= known, text
        key = text.partition(": ")[0]
        if KEY.fullmatch(key) and key.partition(".")[0] in ("environments", "rollout", "trainer"):
            assert key in FIELDS, text


def test_defaults_called_the_same_are_the_same() -> None:
    """The command line without options has the cookbook's values."""
    for trainer in GOLDEN:
        words = shlex.split((ROOT / "tests" / "golden" / trainer / "defaults.txt").read_text("utf-8"), comments=True)
        compared = 0
        for row in SECTIONS[RUN]:
            (name,) = quoted(row["orl"])
            option, theirs = TRAIN_NAMES.get(name, name), row[f"{trainer} default"]
            if row["orl default"] != "same" or option not in words:
                continue
            ours = words[words.index(option) + 1]
            assert ours == theirs or float(ours) == float(theirs), row
            compared += 1
        assert compared >= 13


def test_keys_with_the_same_default_have_it() -> None:
    for row in SECTIONS[KEYS]:
        field = FIELDS[quoted(row["orl"])[0]]
        value = field.default if field.default_factory is NODEFAULT else field.default_factory()
        if row["orl default"] == "same":
            assert msgspec.json.decode(msgspec.json.encode(value)) == yaml.safe_load(row["cookbook default"]), row
