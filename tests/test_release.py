"""Packages as products: metadata, a release of a clone, each wheel alone, and workflows that call recipes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_blocks import RECIPES
from tools import release

ROOT = Path(__file__).parents[1]
PACKAGES = release.packages(ROOT)
ADDRESS = "https://example.org/orl"


def project(name: str) -> dict[str, Any]:
    return tomllib.loads(PACKAGES[name].read_text("utf-8"))["project"]


@pytest.mark.parametrize("name", PACKAGES)
def test_metadata_of_a_package_is_whole(name: str) -> None:
    found = project(name)
    shared = project("orl-rollout")
    for key in ("version", "license", "license-files", "authors", "requires-python"):
        assert found[key] == shared[key], key
    assert found["authors"] == [{"name": "orl contributors"}]
    assert found["keywords"]
    assert {*found["classifiers"]} | {"Operating System :: POSIX :: Linux"} == {*shared["classifiers"]}
    address = release.address_of(ROOT)
    assert found.get("urls", {}) == ({"Repository": address} if "urls" in found else {})
    licence = PACKAGES[name].with_name("LICENSE")
    assert licence.is_symlink()
    assert licence.resolve() == ROOT / "LICENSE"


@pytest.mark.parametrize("name", PACKAGES)
def test_readme_of_a_package_links_to_no_file(name: str) -> None:
    """An index shows it alone."""
    links = re.findall(r"\]\(([^)]+)\)", PACKAGES[name].with_name("README.md").read_text("utf-8"))
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of this tree, with an address and one thing to release."""
    root = tmp_path_factory.mktemp("origin")
    files = subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True).split("\n")
    for file in filter(None, files):
        if (ROOT / file).exists():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, root / file, follow_symlinks=False)
    edit(root / "pyproject.toml", f'repository = "{release.address_of(ROOT)}"', f'repository = "{ADDRESS}"')
    edit(root / "CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n### Added\n- one thing\n")
    release.run("git", "init", "--quiet", cwd=root)
    release.run("git", "add", "--all", cwd=root)
    release.run("git", "commit", "--quiet", "--message", "all: begin", cwd=root)
    return root


@pytest.fixture(autouse=True, scope="module")
def committer() -> Iterator[None]:
    """The settings of git: none of this machine's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
        for role in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{role}_NAME", "a")
            patch.setenv(f"GIT_{role}_EMAIL", "a@example.org")
        yield


@pytest.fixture
def clone(origin: Path, tmp_path: Path) -> Path:
    release.run("git", "clone", "--quiet", origin, tmp_path / "clone")
    return tmp_path / "clone"


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text("utf-8")
    assert old in text
    file.write_text(text.replace(old, new, 1), "utf-8")


def unset_address(root: Path) -> None:
    edit(root / "pyproject.toml", ADDRESS, "")
    release.run("git", "commit", "--quiet", "--all", "--message", "all: hide", cwd=root)


def change(root: Path) -> None:
    edit(root / "README.md", "# orl", "# orl!")


def tag(root: Path) -> None:
    release.run("git", "tag", "v9.8.7", cwd=root)


def say_nothing(root: Path) -> None:
    edit(root / "CHANGELOG.md", "## Unreleased\n", "## Unreleased\n\n## 9.8.6 - 2020-01-01\n")
    release.run("git", "commit", "--quiet", "--all", "--message", "all: be silent", cwd=root)


@pytest.mark.parametrize(
    ("spoil", "version", "subject"),
    [
        (unset_address, "9.8.7", "repository"),
        (change, "9.8.7", "README.md"),
        (tag, "9.8.7", "v9.8.7"),
        (say_nothing, "9.8.7", "CHANGELOG.md"),
        (lambda _: None, "v9.8", "v9.8"),
    ],
)
def test_release_that_cannot_be_made_is_refused(
    clone: Path, spoil: Callable[[Path], None], version: str, subject: str
) -> None:
    spoil(clone)
    before = release.run("git", "status", "--porcelain", cwd=clone)
    with pytest.raises(release.Refusal, match=re.escape(subject)):
        release.release(clone, version)
    assert release.run("git", "status", "--porcelain", cwd=clone) == before


@pytest.mark.slow
def test_release_stamps_builds_commits_and_tags(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    monkeypatch.setattr(release, "verify", lambda _root, folder: seen.extend(release.archives(folder)))
    release.release(clone, "9.8.7")
    assert len(seen) == 2 * len(PACKAGES)
    assert all("-9.8.7" in path.name for path in seen)
    for file in release.packages(clone).values():
        found = tomllib.loads(file.read_text("utf-8"))["project"]
        assert (found["version"], found["urls"]) == ("9.8.7", {"Repository": ADDRESS})
        groups = [found["dependencies"], *found.get("optional-dependencies", {}).values()]
        siblings = [wanted for group in groups for wanted in group if wanted.startswith("orl-")]
        assert all(wanted.endswith(">=9.8.7,<10") for wanted in siblings)
    assert "## Unreleased\n\n## 9.8.7 - " in (clone / "CHANGELOG.md").read_text("utf-8")
    assert f"git clone {ADDRESS} orl" in (clone / "README.md").read_text("utf-8")
    assert "version: 9.8.7\ndate-released: " in (clone / "CITATION.cff").read_text("utf-8")
    assert release.run("git", "status", "--porcelain", cwd=clone) == ""
    assert release.run("git", "tag", "--points-at", "HEAD", cwd=clone) == "v9.8.7\n"
    assert release.run("uv", "lock", "--check", cwd=clone) == ""


def test_pages_clone_no_address_before_there_is_one() -> None:
    pages = (ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*/*/README.md"))
    cloned = [word for page in pages for word in re.findall(r"git clone (\S+)", page.read_text("utf-8"))]
    assert {*cloned} <= {release.address_of(ROOT)}


def test_check_installs_extras_that_exist() -> None:
    for name, extras in release.EXTRAS.items():
        assert {*extras.strip("[]").split(",")} <= {*project(name).get("optional-dependencies", ())}


@pytest.mark.runs
def test_wheels_as_the_workflow_makes_them(clone: Path) -> None:
    release.run("just", "wheels", cwd=clone)
    assert len([*release.archives(clone / "dist")]) == 2 * len(PACKAGES)


@pytest.mark.slow
def test_release_that_fails_leaves_the_tree_as_it_was(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "build", lambda root: release.run("false", cwd=root))
    head = release.run("git", "rev-parse", "HEAD", cwd=clone)
    with pytest.raises(release.Refusal):
        release.release(clone, "9.8.7")
    assert release.run("git", "status", "--porcelain", cwd=clone) == ""
    assert release.run("git", "rev-parse", "HEAD", cwd=clone) == head


def test_package_without_its_licence_is_not_built(clone: Path) -> None:
    file = release.packages(clone)["orl-core"]
    edit(file, 'license-files = ["LICENSE"]', "license-files = []")
    with pytest.raises(release.Refusal, match="orl_core"):
        release.build(clone)


ALONE = ("orl-core", "orl-rollout", "orl-cluster", "orl-gateway", "orl-testing")
KEPT_OUT = {"asyncio", "aiohttp", "openreward", "transformers", "torch", "wandb", "yaml"}  # of what orl-core loads

PROBE = """
import importlib, importlib.resources, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
modules = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
extra = "orl_testing.tinker."  # an extra of its own has what these need
for name in (name for name in modules if not name.endswith("__main__") and not name.startswith(extra)):
    importlib.import_module(name)
typed = importlib.resources.files(package).joinpath("py.typed").is_file()
print(json.dumps({"typed": typed, "modules": len(modules)}))
"""
LIGHT = """
import json, sys
import orl_core.config, orl_core.datum, orl_core.render, orl_core.reward, orl_core.tools
print(json.dumps(list(sys.modules)))
"""


def output(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheels that have been asked for, each with those that it requires."""
    return tmp_path_factory.mktemp("wheels")


def installed(package: str, wheels: Path, folder: Path) -> Path:
    """Return the interpreter of a fresh environment that holds the wheel of `package` and what it requires."""
    output("uv", "venv", "-q", "--python", sys.executable, folder / "venv")
    python = folder / "venv" / "bin" / "python"
    for each in {*ALONE[:2], package}:
        if not [*wheels.glob(f"{each.replace('-', '_')}-*.whl")]:
            output("uv", "build", "-q", "--wheel", "--package", each, "--out-dir", wheels)
    (wheel,) = wheels.glob(f"{package.replace('-', '_')}-*.whl")
    output("uv", "pip", "install", "-q", "--python", python, "--find-links", wheels, wheel)
    return python


@pytest.mark.slow
@pytest.mark.parametrize("package", [ALONE[1], *(pytest.param(name, marks=pytest.mark.runs) for name in ALONE[2:])])
def test_wheel_imports_alone_and_is_typed(package: str, wheels: Path, tmp_path: Path) -> None:
    check_imports(package, installed(package, wheels, tmp_path))


def check_imports(package: str, python: Path) -> None:
    name = package.replace("-", "_")
    found = json.loads(output(python, "-I", "-W", "error", "-c", PROBE, name))
    sources = ROOT / "packages" / package / "src" / name
    assert found["typed"]
    assert found["modules"] == len([*sources.rglob("*.py")]) - 1  # without the package itself


@pytest.mark.slow
def test_core_brings_two_packages_and_loads_light(wheels: Path, tmp_path: Path) -> None:
    python = installed("orl-core", wheels, tmp_path)
    check_imports("orl-core", python)
    listed = json.loads(output("uv", "pip", "list", "-q", "--format", "json", "--python", python))
    assert {one["name"].lower() for one in listed} == {"orl-core", "msgspec", "pyyaml"}
    assert not KEPT_OUT & {*json.loads(output(python, "-c", LIGHT))}


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
INSTALL = "pip install uv rust-just"


def steps(file: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(file.read_text("utf-8"))["jobs"].values()
    assert all(job["timeout-minutes"] for job in jobs)
    return [step for job in jobs for step in job["steps"]]


def test_there_are_workflows() -> None:
    assert [file.stem for file in WORKFLOWS] == ["check", "docs", "newest", "release", "wheels"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflow_calls_recipes_that_exist(file: Path) -> None:
    commands = [step["run"] for step in steps(file) if "run" in step]
    recipes = [command.removeprefix("just ") for command in commands if command != INSTALL]
    assert recipes
    assert {recipe.split()[0] for recipe in recipes} <= {*RECIPES}
    assert commands.count(INSTALL) == len(recipes)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.stem)
def test_workflow_may_only_read(file: Path) -> None:
    assert yaml.safe_load(file.read_text("utf-8"))["permissions"] == {"contents": "read"}
    assert "secrets." not in file.read_text("utf-8")
    uses = [step["uses"] for step in steps(file) if "uses" in step]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", used) for used in uses)


def test_ci_calls_what_the_check_workflow_calls() -> None:
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert "uv rust-just" in script
    assert script.rstrip().endswith("just check")
    assert "just check" in [step.get("run") for step in steps(ROOT / ".github" / "workflows" / "check.yml")]
