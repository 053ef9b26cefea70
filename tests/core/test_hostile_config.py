"""Files that hold no configuration, and values that no reader takes, are refused in one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from orl_core.config import decode_config, load_config
from orl_core.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "trainer: {seed: " + "9" * 100_000 + "}",
        "trainer: {seed: 0x" + "9" * 300_000 + "}",
        "[" * 5_000,
        "\n".join(f"key{n}: 1" for n in range(2_000)) + "\nkey1999: 2",
    ],
    ids=["digits", "hex", "nested", "twice"],
)
def test_yaml_that_explodes_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"run\.yaml") as caught:
        load_config(path)
    assert len(str(caught.value)) < 2_000
    assert "\n" not in str(caught.value)


def test_file_that_is_no_configuration_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "weights.yaml"
    path.write_bytes(b"#" * (1 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        load_config(path)


@pytest.mark.parametrize("kind", ["configuration", "template"])
def test_configuration_is_read_from_a_pipe(kind: str, tmp_path: Path) -> None:
    """`/dev/stdin` and `<(command)` of a shell are such paths."""
    text = "environments: {A/B: {}}\n" if kind == "configuration" else "{{ messages }}"
    own = tmp_path / "run.yaml"
    own.write_text("environments: {A/B: {}}\n", encoding="utf-8")
    reading, writing = os.pipe()
    try:
        os.write(writing, text.encode())
        os.close(writing)
        pipe = Path(f"/dev/fd/{reading}")
        if kind == "configuration":
            assert load_config(pipe) == load_config(own)
        else:
            assert load_config(own, [f"chat_template={pipe}"]).chat_template == text
    finally:
        os.close(reading)


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
