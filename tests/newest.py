"""Run tests with the newest versions that are published, and name the package that breaks them: `just nightly newest`.

The upper bounds of our packages are lifted. Their lower bounds and all bounds of others hold, which overrides of uv
would replace as well. A pre-release is taken only if there is no release. Arguments go to pytest.

If tests fail, the first of them run again with a part of the new versions, and those of uv.lock otherwise. The part
shrinks until nothing more can be left out (delta debugging). Every run has a time limit, and so has the search. The
exit code is that of the tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from orl_rollout.edge.children import kill_group
from packaging.dependency_groups import resolve_dependency_groups
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tools.release import packages

ROOT = Path(__file__).parents[1]
PLACE = ROOT / ".venv-newest"
FAILED = "ORL_NEWEST_FAILED"  # names the file to which the ids of failed tests are appended
FIRST = 3  # failed tests that run again
SUITE_SECONDS, AGAIN_SECONDS, SEARCH_SECONDS = 3600.0, 600.0, 3600.0
OVERDUE = 124  # the exit code of a run that took too long

Versions = Mapping[str, str]
Part = tuple[str, ...]  # names of packages
Failed = frozenset[str]  # ids of tests


def requirements(root: Path) -> list[str]:
    """Return what our packages, their extras and the group dev require of others, without upper bounds."""
    groups = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    wanted = [*resolve_dependency_groups(groups, "dev")]
    for file in packages(root).values():
        project = tomllib.loads(file.read_text("utf-8"))["project"]
        wanted += chain(project["dependencies"], *project.get("optional-dependencies", {}).values())
    return sorted({lifted(text) for text in wanted if not text.startswith("orl-")})


def lifted(text: str) -> str:
    """Return a requirement without its upper bounds."""
    wanted = Requirement(text)
    wanted.specifier = SpecifierSet(",".join(str(one) for one in wanted.specifier if not one.operator.startswith("<")))
    return str(wanted)


def smallest(changed: Part, breaks: Callable[[Part], bool]) -> Part:
    """Return a part of `changed` that breaks tests, of which nothing more can be left out."""
    pieces = 2
    while len(changed) > 1:
        size = -(-len(changed) // pieces)
        parts = [changed[at : at + size] for at in range(0, len(changed), size)]
        rests = [tuple(name for name in changed if name not in part) for part in parts]
        if narrower := next((part for part in (*parts, *rests) if breaks(part)), None):
            changed, pieces = narrower, max(pieces - 1, 2) if narrower in rests else 2
        elif size == 1:
            break
        else:
            pieces *= 2
    return changed


def culprits(changed: Part, failing: Callable[[Part], Failed], over: Callable[[], bool]) -> Part:
    """Return the packages whose new versions break tests that pass with uv.lock; what is left, if time is over.

    `failing` runs tests with the new versions of a part. A part is to blame if it breaks most of them: one may fail or
    pass by chance.
    """
    failing = cache(failing)
    tests = failing(changed) - failing(())
    return smallest(changed, lambda part: not over() and 2 * len(tests & failing(part)) > len(tests)) if tests else ()


def resolve(wanted: Sequence[str], preferred: str) -> dict[str, str]:
    """Write and return the versions of all packages: a preferred one if it fits, else the newest. {} if none fit."""
    pins = PLACE / "pins.txt"
    pins.write_text(preferred, "utf-8")  # uv keeps what it finds in its output file
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--prerelease", "if-necessary"]
    command += ["--python", str(PLACE), "--output-file", str(pins), "-"]
    done = subprocess.run(command, input="\n".join(wanted), text=True, check=False, cwd=ROOT)
    return dict(line.split("==") for line in pins.read_text("utf-8").splitlines()) if done.returncode == 0 else {}


def differing(old: Versions, new: Versions) -> Part:
    """Return the packages whose new version is another one."""
    return tuple(name for name, at in new.items() if old.get(name) != at)


def install(*words: str | Path) -> None:
    """Install into the environment of the newest versions."""
    subprocess.run(["uv", "pip", "install", "--quiet", "--python", PLACE, *words], check=True, cwd=ROOT)


def run_tests(arguments: Sequence[str], seconds: float) -> tuple[int, list[str]]:
    """Return the exit code of pytest and the ids of the tests that failed, also of a run that had to be ended."""
    failed = PLACE / "failed.txt"
    failed.write_text("")
    path = f"{PLACE / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, FAILED: str(failed), "VIRTUAL_ENV": str(PLACE), "PATH": path}
    command = [PLACE / "bin" / "python", "-m", "pytest", "-p", "tests.newest", *arguments]
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True) as process:
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            print(f"pytest was ended after {seconds:.0f} seconds")
            code = OVERDUE
        finally:
            kill_group(process.pid)
    return code, [*dict.fromkeys(failed.read_text("utf-8").splitlines())]


def pytest_runtest_logreport(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Write the id of a test that failed at once: its run may never end."""
    if report.failed and FAILED in os.environ:
        with Path(os.environ[FAILED]).open("a", encoding="utf-8") as file:
            file.write(f"{report.nodeid}\n")


pytest_collectreport = pytest_runtest_logreport


def again(arguments: Sequence[str], tests: Sequence[str]) -> list[str]:
    """Return the arguments that run `tests` alone and side by side, or only collect if there are none."""
    kept = [word for word in arguments if not (tests and Path(word.partition("::")[0]).exists())]
    return [*kept, "--quiet", "--no-header", "--tb=no", f"--maxprocesses={FIRST}", *(tests or ["--collect-only"])]


def search(arguments: Sequence[str], tests: Sequence[str], old: Versions, new: Versions) -> Part:
    """Return the packages whose new versions break `tests`, and print what each run finds."""
    changed, ends = differing(old, new), time.monotonic() + SEARCH_SECONDS
    preferred = "".join(f"{name}=={at}\n" for name, at in old.items())

    def failing(part: Part) -> Failed:
        """Return the tests that fail: all if the run does not end, none if the versions do not fit each other."""
        found: Sequence[str] = ()
        if resolve([*requirements(ROOT), *(f"{name}=={new[name]}" for name in part)], preferred):
            install("--requirements", PLACE / "pins.txt")
            code, failed = run_tests(again(arguments, tests), AGAIN_SECONDS)
            found = tests if code == OVERDUE else failed or [f"exit code {code}"] * bool(code)
        print(f"{len(part)} of {len(changed)} new: {len(found)} of {len(tests)} fail", flush=True)
        return frozenset(found)

    return culprits(changed, failing, lambda: time.monotonic() > ends)


def main(given: Sequence[str]) -> int:
    """Run the tests with the newest versions, and print what differs from uv.lock and what breaks them."""
    options = argparse.ArgumentParser(prog="test-newest", description="Arguments go to pytest.", allow_abbrev=False)
    _, arguments = options.parse_known_args(given)
    subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", sys.executable, PLACE], check=True)
    export = ["uv", "export", "--quiet", "--frozen", "--all-packages", "--all-extras", "--group", "dev", "--no-hashes"]
    locked = subprocess.check_output([*export, "--no-emit-workspace"], text=True, cwd=ROOT)
    old, new = resolve(requirements(ROOT), locked), resolve(requirements(ROOT), "")
    if not (old and new):
        return 1  # uv has said why
    for name in differing(old, new):
        print(f"{name} {old.get(name, 'none')} -> {new[name]}", flush=True)
    ours = chain.from_iterable(("--editable", file.parent) for file in packages(ROOT).values())
    install("--no-deps", "--requirements", PLACE / "pins.txt", *ours)
    code, failed = run_tests(arguments, SUITE_SECONDS)
    if code:
        broken = search(arguments, failed[:FIRST], old, new)
        print(
            f"broken by {' and '.join(broken)}" if broken else "broken by no new version: by uv.lock too, or by chance"
        )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
