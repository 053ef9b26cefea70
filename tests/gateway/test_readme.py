"""The use in orl-gateway's README runs as it is written, with a small checkpoint for a real one."""

import re
from pathlib import Path

import pytest

from tests.kit.tokenizers import build, template

README = Path(__file__).parents[2] / "packages" / "orl-gateway" / "README.md"


@pytest.mark.slow
def test_use_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build(template("qwen3")).save_pretrained(tmp_path / "Qwen" / "Qwen3-0.6B")
    (use,) = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.M | re.S)
    assert "assert " in use
    exec(compile(use, README.name, "exec"), {"__name__": "readme"})


def test_every_module_is_named_in_the_table() -> None:
    package = README.parent / "src" / "orl_gateway"
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    table = README.read_text("utf-8").partition("\n\n##")[0]
    assert modules - {"__init__"} == {name for name in modules if f"`{name}`" in table}
