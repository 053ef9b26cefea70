"""A configuration is read from any path, and an error of YAML shows no word of the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from orl_core.config import load_config
from orl_core.errors import ConfigError


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


@pytest.mark.parametrize("value", ["*Xk29hush", "!Xk29hush", "!<Xk29hush", "{value: *Xk29hush}", "!x!Xk29hush y"])
def test_an_error_of_yaml_shows_no_word_of_the_file(tmp_path: Path, value: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"environments: {{A/B: {{secrets: {{K: {value}}}}}}}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="line 1") as caught:
        load_config(path)
    assert "hush" not in str(caught.value)
