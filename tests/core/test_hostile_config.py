"""Files and values that are made to exhaust a reader, or to be shown in an error, are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from orl_core.config import decode_config, load_config
from orl_core.errors import ConfigError


def laughs(levels: int) -> str:
    """A list of ten aliases of a list of ten aliases, and so on."""
    lines = ["a0: &a0 [lol, lol]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, levels))]
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        laughs(12),
        laughs(12) + "\nenvironments: *a11",
        "environments: &a [*a]",
        "a: &a {x: 1}\nb: &b {<<: [" + ", ".join(["*a"] * 20_000) + "]}",
        "trainer: {seed: " + "9" * 100_000 + "}",
        "trainer: {seed: 0x" + "9" * 300_000 + "}",
        "[" * 5_000,
        "\n".join(f"key{n}: 1" for n in range(2_000)) + "\nkey1999: 2",
    ],
    ids=["aliases", "aliases used", "itself", "merged", "digits", "hex", "nested", "twice"],
)
def test_yaml_that_explodes_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.yaml") as caught:
        load_config(path)
    assert len(str(caught.value)) < 2_000
    assert "\n" not in str(caught.value)


def test_override_with_aliases_that_explode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("environments: {A/B: {}}", encoding="utf-8")
    with pytest.raises(ConfigError, match="override"):
        load_config(path, [f"trainer={{{laughs(9).replace(chr(10), ', ')}}}"])


def test_endless_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(Path("/dev/zero"))


@pytest.mark.parametrize("text", ["secrets: {a: 'hush-hush\n", "secrets:\n  a: [hush-hush}\n", "a: hush-hush: b"])
def test_a_file_that_is_no_yaml_is_refused_without_its_lines(tmp_path: Path, text: str):
    path = tmp_path / "broken.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"broken\.yaml.*line \d") as caught:
        load_config(path)
    assert "hush" not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize("value", ["*Xk29hush", "!Xk29hush", "!<Xk29hush", "{value: *Xk29hush}", "!x!Xk29hush y"])
def test_an_error_of_yaml_shows_no_word_of_the_file(tmp_path: Path, value: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"environments: {{A/B: {{secrets: {{K: {value}}}}}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1") as caught:
        load_config(path)
    assert "hush" not in str(caught.value)


def test_numbers_in_base_sixty_are_text(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"environments: {{A/B: {{}}}}\nopenreward_run_name: 1{':59' * 60_000}\n", encoding="utf-8")
    assert len(load_config(path).openreward_run_name or "") == 180_001


@pytest.mark.parametrize(
    "override",
    [
        "trainer.lr=1" + ":59" * 400 + ".5",
        "trainer.seed=1" + ":59" * 400,
        "trainer.seed=0x" + "f" * 5_000,
        "trainer={0x" + "f" * 5_000 + ": 1}",
    ],
    ids=["float", "integer of base 60", "integer of base 16", "key"],
)
def test_number_beyond_every_reader_is_refused(tmp_path: Path, override: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("environments: {A/B: {}}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path, [override])
    assert len(str(caught.value)) < 1_000 + 2 * len(str(path))


@pytest.mark.parametrize(
    "tree", [{"trainer": {1 << 20_000: 1}}, {"secrets": {1 << 20_000: "x"}}, {"trainer": {"seed": 1 << 20_000}}]
)
def test_number_of_many_digits_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"number"):
        decode_config({"environments": {"A/B": {}}, **tree}, "tree")


@pytest.mark.parametrize("levels", [101, 900, 100_000])
def test_tree_of_any_depth_is_refused(levels: int) -> None:
    tree: Any = 1
    for _ in range(levels):
        tree = {"environments": tree}
    with pytest.raises(ConfigError, match="nested"):
        decode_config(tree, "test")
