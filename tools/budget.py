"""Hold the size of the tree below its ceilings: `python -m tools.budget`. `just lint` runs it.

Three gates: tokens of the product, tokens of what tests it, and private members of foreign objects. Their ceilings are
in budget.toml. `--report` adds figures without a ceiling.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTING = "packages/orl-testing"
TESTS = ("tests", "benchmarks", TESTING)
COUNTED = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
TEMPLATES = {".j2", ".html", ".css", ".js"}
UNDERSCORED = {"_current_frames", "_exit", "_replace", "_asdict", "_fields"}  # they are public
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
HEAD = """\
# The ceilings that `just lint` holds and `just budget` prints: the last value plus 1 %, plus the rises.
# A ceiling rises only by a line "+N issue: reason" in `rises`. `just budget --lower ISSUE` writes this file anew.
"""


def files(*folders: str) -> list[Path]:
    """List the files below folders of the repository that git does not ignore."""
    command = ["git", "ls-files", "-zco", "--exclude-standard", "--", *folders]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return [path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def product_files() -> list[Path]:
    """List the files of the product: orl-testing is not a part of it."""
    return files("packages", "apps", "examples", "tools", f":!{TESTING}")


def tokens(source: str) -> int:
    """Count names, operators and literals of Python source, without docstrings; an f-string is one literal."""
    documents = {node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt) and _is_text(node)}
    count = depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]  # Python 3.12 reads an f-string as many tokens
        depth -= kind.endswith("STRING_END")
        if not depth and (kind.endswith("STRING_START") or token.type in COUNTED):
            count += token.type != tokenize.STRING or token.start[0] not in documents
        depth += kind.endswith("STRING_START")
    return count


def statements(source: str) -> int:
    """Count statements of Python source, without docstrings."""
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in ast.walk(ast.parse(source)))


def _is_text(node: ast.stmt) -> bool:
    constant = node.value if isinstance(node, ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)


def size(paths: Iterable[Path]) -> int:
    """Return the tokens of Python files plus the words of templates."""
    counts = {".py": tokens, **dict.fromkeys(TEMPLATES, lambda text: len(text.split()))}
    return sum(counts[path.suffix](path.read_text("utf-8")) for path in paths if path.suffix in counts)


def foreign_members(nodes: list[ast.AST], known: set[str]) -> set[str]:
    """Return each private name that syntax nodes use and that neither they nor `known` bind.

    A name used on `super()` counts too: a method that overrides it does not make it ours.
    """
    calls = [node for node in nodes if isinstance(node, ast.Call) and _last_name(node.func).endswith("attr")]
    texts = {one.value for call in calls for one in call.args if isinstance(one, ast.Constant)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    asked = (node for node in attributes if isinstance(node.value, ast.Call))
    above = {node.attr for node in asked if ast.unparse(node.value) == "super()"}
    found = {node.attr for node in attributes} | {text for text in texts if isinstance(text, str)}
    found = found - bound_names(nodes) - known | above
    return {name for name in found if re.match("_[a-z]", name) and name not in UNDERSCORED}


def nodes_of(source: str) -> list[ast.AST]:
    """Return each syntax node of Python source."""
    return [*ast.walk(ast.parse(source))]


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _variable(node: ast.AST) -> str:
    """Return the name of a variable or of an attribute of `self`; "" of anything else."""
    own = isinstance(node, ast.Name) or _last_name(getattr(node, "value", node)) == "self"
    return _last_name(node) if own else ""


def bound_names(nodes: list[ast.AST]) -> set[str]:
    """Return each name that syntax nodes bind: definitions, imports, parameters, variables, attributes of `self`."""
    increased = {id(node.target) for node in nodes if isinstance(node, ast.AugAssign)}

    def names() -> Iterator[str]:
        for node in nodes:
            if isinstance(node, FUNCTIONS | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.alias):
                yield node.asname or node.name
            elif isinstance(node, ast.arg):
                yield node.arg
            elif isinstance(getattr(node, "ctx", None), ast.Store) and id(node) not in increased:
                yield _variable(node)

    return set(names())


def members() -> list[str]:
    """List `package: _name` for each private member of a foreign object that the tree uses."""
    packages: dict[str, list[ast.AST]] = defaultdict(list)
    for path in (*product_files(), *files(*TESTS)):
        parts = path.relative_to(ROOT).parts
        if path.suffix == ".py":
            packages[parts[parts[0] in ("packages", "apps")]] += nodes_of(path.read_text("utf-8"))
    whole = {name for nodes in packages.values() for name in bound_names(nodes)}
    return [
        f"{package}: {name}"
        for package, nodes in sorted(packages.items())
        for name in sorted(foreign_members(nodes, whole if package in TESTS else set()))
    ]


def gates(budget: dict[str, Any]) -> Iterator[tuple[str, int, int]]:
    """Yield name, value and ceiling of each gate that counts tokens."""
    for name, paths in (("product", product_files()), ("tests", files(*TESTS))):
        yield name, size(paths), int(1.01 * budget[name]["last"]) + sum(risen(budget[name]))


def risen(gate: dict[str, Any]) -> list[int]:
    """Return the tokens of each rise of a gate, which is a line `+N issue: reason`."""
    return [int(re.fullmatch(r"\+(\d+) .+: .+", line)[1]) for line in gate["rises"]]  # type: ignore[index]


def lower(budget: dict[str, Any], issue: str) -> str:
    """Return budget.toml with the values of today, none above `last` and its rises."""
    if issue == budget["lowered"]:
        raise SystemExit(f"budget.toml was lowered by {issue} already. Once an issue is enough.")
    parts = [HEAD, f"lowered = {json.dumps(issue)}\nmembers = {json.dumps(members(), indent=4)}\n"]
    for name, value, _ in gates(budget):
        last = min(value, budget[name]["last"] + sum(risen(budget[name])))
        parts.append(f"\n[{name}]\nlast = {last}\nrises = []\n")
    return "".join(parts)


def report() -> Iterator[tuple[str, object]]:
    """Yield the figures that have no ceiling."""
    import grimp

    for folder in (*sorted(ROOT.glob("packages/*")), *sorted(ROOT.glob("apps/*")), *map(ROOT.joinpath, TESTS[:2])):
        texts = [path.read_text("utf-8") for path in files(str(folder)) if path.suffix == ".py"]
        counts = [sum(map(count, texts)) for count in (statements, tokens, lambda text: text.count("\n"))]
        yield folder.name, "{:,} statements, {:,} tokens, {:,} lines".format(*counts)
    names = [path.stem for path in ROOT.glob("*/*/src/orl_*") if path.stem != "orl_testing"]
    graph = grimp.build_graph(*names, cache_dir=None)
    importers = {module: graph.find_modules_that_directly_import(module) for module in graph.modules}
    alone = [(one, *by) for one, by in importers.items() if len(by) == 1]
    yield "import edges", sum(map(len, importers.values()))
    yield (
        "modules with one importer in their folder",
        sum(len({one.rpartition(".")[0] for one in two}) == 1 for two in alone),
    )
    trees = [ast.parse(path.read_text("utf-8")) for path in product_files() if path.suffix == ".py"]
    public = Counter(node.name for tree in trees for node in tree.body if isinstance(node, FUNCTIONS | ast.ClassDef))
    yield "public names defined twice", sum(count > 1 and not name.startswith("_") for name, count in public.items())
    yield "configuration keys", len(re.findall(r'"description":', (ROOT / "configs/schema.json").read_text("utf-8")))
    parsers = map(import_module("orl_launcher.cli").Parser, import_module("orl_launcher.main").COMMANDS)
    yield (
        "options of commands",
        sum(len(re.findall("^  (?:-., )?--", one.format_help(), re.MULTILINE)) for one in parsers),
    )
    yield "words of pages", sum(len(path.read_text("utf-8").split()) for path in files("README.md", "docs/*.md"))
    yield "words of AGENTS.md", len((ROOT / "AGENTS.md").read_text("utf-8").split())
    yield (
        "recipes",
        len(re.findall(r"^[a-z][\w-]*[^:=\n]*:(?!=)", (ROOT / "justfile").read_text("utf-8"), re.MULTILINE)),
    )


def main(arguments: list[str]) -> int:
    """Print the gates. Return 1 if one is above its ceiling."""
    parser = argparse.ArgumentParser(prog="just budget", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--report", action="store_true", help="print the figures without a ceiling too")
    parser.add_argument("--lower", metavar="ISSUE", help="write the values of today as the last ones, for this issue")
    options = parser.parse_args(arguments)
    file = ROOT / "budget.toml"
    budget = tomllib.loads(file.read_text("utf-8"))
    private, listed = members(), budget["members"]
    faults = [f"{one}: a private member of a foreign object" for one in private if one not in listed]
    for name, value, ceiling in gates(budget):
        print(f"{name}: {value:,} tokens of {ceiling:,}")
        faults += [f"{name} has {value - ceiling:,} tokens too many. Delete some."] if value > ceiling else []
    print(f"private members of foreign objects: {len(private)} of {len(listed)}")
    for name, value in report() if options.report else ():
        print(f"{name}: {value}")
    if options.lower and not faults:
        file.write_text(lower(budget, options.lower), "utf-8")
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
