"""Build the packages and check them as a user gets them: `just wheels`. Release them: `just release VERSION`.

A release writes the version and the project's address into every package, builds and checks them, commits and tags.
It uploads nothing. If a step fails, the tree is as it was before. docs/maintainers.md describes the steps.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
VERSION = re.compile(r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?")
EXTRAS = {"orl-launcher": "[local,trl,slime,miles]"}  # all that a package can do is installed
README_TESTS = [f"tests/{part}/test_readme.py" for part in ("core", "rollout", "gateway")]
README_NEEDS = ["pytest", "pytest-asyncio", "pytest-xdist", "hypothesis", "openai"]


class Refusal(Exception):
    """The release cannot be made. One line says why."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Return the output of a program. Its failure is a refusal."""
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refusal(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def packages(root: Path) -> dict[str, Path]:
    """Return the pyproject.toml of each package, by its name."""
    files = [*root.glob("packages/*/pyproject.toml"), *root.glob("apps/*/pyproject.toml")]
    return {tomllib.loads(file.read_text("utf-8"))["project"]["name"]: file for file in sorted(files)}


def address_of(root: Path) -> str:
    """Return the project's address, which the root pyproject.toml holds. It is empty before there is one."""
    return tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["orl"]["repository"]


def check(root: Path, version: str) -> None:
    """Refuse a release that cannot be made, before anything is written."""
    if not VERSION.fullmatch(version):
        raise Refusal(f"{version}: not a version. Write three numbers: 1.2.0, or 1.2.0rc1")
    if not address_of(root).startswith("https://"):
        raise Refusal("pyproject.toml: `repository` of [tool.orl] is not set. Write the project's address there")
    if changed := run("git", "status", "--porcelain", cwd=root):
        raise Refusal(f"the tree has changes. Commit them first:\n{changed}")
    if run("git", "tag", "--list", f"v{version}", cwd=root):
        raise Refusal(f"v{version}: there is such a tag. Give the next version")
    if not re.search(r"^## Unreleased\n(?:(?!^## ).)*?^- ", (root / "CHANGELOG.md").read_text("utf-8"), re.M | re.S):
        raise Refusal("CHANGELOG.md: nothing under Unreleased. Write what changed")


def stamp(root: Path, version: str) -> None:
    """Write the version, the bounds between packages and the address wherever they are."""
    today, address = f"{datetime.now(UTC):%Y-%m-%d}", address_of(root)
    major, minor = version.split(".")[:2]
    limit = f"{int(major) + 1}" if int(major) else f"0.{int(minor) + 1}"
    for file in (root / "pyproject.toml", *packages(root).values()):
        text = re.sub(r'^version = ".*"$', f'version = "{version}"', file.read_text("utf-8"), count=1, flags=re.M)
        text = re.sub(r'"(orl-[a-z]+(?:\[\w+\])?)>=[^"]+"', rf'"\1>={version},<{limit}"', text)
        text = re.sub(r"^\[project\.urls\]\n.*\n\n", "", text, flags=re.M)
        urls = f'[project.urls]\nRepository = "{address}"\n\n[build-system]'
        file.write_text(text.replace("[build-system]", urls), "utf-8")
    for name, old, new in (
        ("CHANGELOG.md", r"^## Unreleased\n", f"## Unreleased\n\n## {version} - {today}\n"),
        ("CITATION.cff", r"^version: .*\n(?:date-released: .*\n)?", f"version: {version}\ndate-released: {today}\n"),
    ):
        file = root / name
        file.write_text(re.sub(old, new, file.read_text("utf-8"), count=1, flags=re.M), "utf-8")
    clone = rf"\1git clone {address} orl && cd orl\n"
    for file in (root / "README.md", *root.glob("docs/*.md")):
        text = file.read_text("utf-8")
        file.write_text(re.sub(r"^(pip install uv rust-just\n)(?:git clone .*\n)?", clone, text, flags=re.M), "utf-8")
    run("uv", "lock", cwd=root)


def build(root: Path) -> Path:
    """Return the folder of every package's wheel and sdist, each with the licence."""
    folder = root / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    run("uv", "build", "--quiet", "--all-packages", "--out-dir", folder, cwd=root)
    lacking = [path.name for path in archives(folder) if not any(name.endswith("/LICENSE") for name in names_in(path))]
    if lacking or len([*archives(folder)]) != 2 * len(packages(root)):
        raise Refusal(f"{folder}: not a wheel and an sdist of each package with its licence. Without: {lacking}")
    return folder


def archives(folder: Path) -> Iterator[Path]:
    """Yield the wheels and sdists in a folder."""
    yield from sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])


def names_in(archive: Path) -> list[str]:
    """Return the names of the files in a wheel or an sdist."""
    if archive.suffix == ".whl":
        with ZipFile(archive) as wheel:
            return wheel.namelist()
    with tarfile.open(archive) as sdist:
        return sdist.getnames()


def verify(root: Path, folder: Path) -> None:
    """Check what an index checks, and use the wheels alone, outside a checkout, in an environment of their own."""
    run("uv", "run", "--no-project", "--with", "twine", "twine", "check", "--strict", *archives(folder), cwd=root)
    with tempfile.TemporaryDirectory() as temporary:
        outside = Path(temporary)
        python, trainers = outside / "orl/bin/python", outside / "trainer/bin/python"
        for environment in (python, trainers):
            run("uv", "venv", "--quiet", "--python", sys.executable, environment.parents[1])
        wheels = [next(folder.glob(f"{name.replace('-', '_')}-*.whl")) for name in packages(root)]
        wanted = [f"{wheel}{EXTRAS.get(name, '')}" for name, wheel in zip(packages(root), wheels, strict=True)]
        run("uv", "pip", "install", "--quiet", "--python", python, *wanted)
        orl = python.with_name("orl")
        run(orl, "--version", cwd=outside)
        run(orl, "train", "local", "--dry-run", cwd=outside)  # with the default configuration
        run(orl, "install-into", trainers, "--trainer", "slime", cwd=outside)
        run(trainers, "-c", "import orl_slime.generate, orl_gateway", cwd=outside)
        run("uv", "pip", "install", "--quiet", "--python", python, *README_NEEDS)
        run(
            python,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-o",
            "filterwarnings=default",
            *README_TESTS,
            cwd=root,
        )


def release(root: Path, version: str) -> None:
    """Make a release: a commit and its tag."""
    check(root, version)
    try:
        stamp(root, version)
        verify(root, build(root))
    except BaseException:
        run("git", "restore", ".", cwd=root)
        raise
    conclude(root, version)


def conclude(root: Path, version: str) -> None:
    """Commit what was stamped, and tag it."""
    run("git", "commit", "--all", "--message", f"release: publish {version}", cwd=root)
    run("git", "tag", "--annotate", f"v{version}", "--message", f"orl {version}", cwd=root)


def main(arguments: list[str]) -> int:
    """Release the version that is given, or build and check without one."""
    try:
        if arguments:
            release(ROOT, arguments[0])
        else:
            verify(ROOT, build(ROOT))
    except Refusal as exc:
        print(f"release: {exc}", file=sys.stderr)
        return 1
    print("dist/ has the wheels and sdists" + (f". Push the commit and the tag v{arguments[0]}" if arguments else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
