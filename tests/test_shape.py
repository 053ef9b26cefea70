"""The shape of product code: sizes of modules and functions, no circle of imports, and the public names."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import orl_core

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for folder in ("packages", "apps") for path in ROOT.glob(f"{folder}/*/src/**/*.py"))
MODULE_LINES, FUNCTION_LINES, PARAMETERS = 400, 50, 6


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def too_big(source: str) -> Iterator[str]:
    """Yield what is wrong with the size of a module."""
    lines = len(source.splitlines())
    if lines > MODULE_LINES:
        yield f"{lines} lines, at most {MODULE_LINES}: find the part that is a module of its own"
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines > FUNCTION_LINES:
            yield f"{node.name}: {lines} lines, at most {FUNCTION_LINES}"
        given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        parameters = sum(one.arg not in ("self", "cls") for one in given)
        if parameters > PARAMETERS:
            yield f"{node.name}: {parameters} parameters, at most {PARAMETERS}: find the missing noun"


def test_modules_are_small() -> None:
    found = {named(path): list(too_big(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_negative_control_what_is_too_big_is_found() -> None:
    body = "\n".join(["    x = 1"] * FUNCTION_LINES)
    source = f"def long(self, a, /, b, *c, d, e, f, g, h):\n{body}\n" + "\n" * MODULE_LINES
    assert [text.split(",")[0] for text in too_big(source)] == [
        f"{FUNCTION_LINES + MODULE_LINES + 1} lines",
        f"long: {FUNCTION_LINES + 1} lines",
        f"long: {PARAMETERS + 1} parameters",
    ]


def test_no_circle_of_imports() -> None:
    """Imports for types count: a circle of nouns shows that one of them is missing."""
    packages = {path.relative_to(ROOT).parts[3] for path in SOURCES}
    graph = grimp.build_graph(*sorted(packages), cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert {"orl_core", "orl_testing.sglang.server", "orl_launcher.main"} <= imports.keys()
    TopologicalSorter(imports).prepare()  # raises CycleError with the modules of a circle


PUBLIC = {
    "orl_cluster": "",
    "orl_core": (
        "Action Block Certificate ConfigError Datum EngineError EnvironmentConfig FailureKind FinishReason "
        "Generation GroupRewardConfig ImageBlock Limits Message OrlError ParseFailure RenderError Renderer "
        "Role RolloutSpec RunAborted RunConfig SessionError Span StopDetail StopReason TOOL_FORMATS Task TaskRow "
        "TextBlock Tokenizer ToolCall ToolFormat ToolResult ToolSpec TrainOn TrainerConfig Trajectory Turn "
        "boundary decode_config format_tools group_advantages group_rewards load_config parse reduce_reward "
        "reduce_rewards render_call row_of system_prompt text_message text_of to_data"
    ),
    "orl_core.config": (
        "AgentConfig EnvironmentConfig EvalConfig GroupRewardConfig Reduction RewardMode "
        "RolloutConfig RunConfig Secret Secrets TrainerConfig decode_config load_config"
    ),
    "orl_core.render": "Certificate Check Renderer Tokenizer",
    "orl_core.tools": (
        "Mark Marked TOOL_FORMATS ToolFormat format_tools parse render_call system_prompt taught_format tool_format "
        "wire_format"
    ),
    "orl_gateway": "AgentEpisode Episode Gateway",
    "orl_launcher.playground": "cached_model",
    "orl_miles": "generate hooks launch",
    "orl_playground": "server",
    "orl_rollout": (
        "CircuitBreaker Engine Entry Journal LocalEngine OpenRewardClient Opening Outcome Overloaded Plan "
        "RolloutRequest Run Runtime Session SessionLost SglangEngine Timeouts Trainer VllmEngine load_tokenizer "
        "metrics_of open_runtime prepare read_journal read_tasks rollout stats_of"
    ),
    "orl_rollout.openreward": "OpenRewardClient OpenRewardSession",
    "orl_slime": "generate hooks launch",
    "orl_testing": (
        "Fault FaultKind Mishap MishapKind Proxy Recorded ScriptedEngine ScriptedSession SglangServer VllmServer "
        "logprobs_of seeded_faults"
    ),
    "orl_testing.environments": (
        "Compared Conversation Duplicates Echo Endless Failing FailingSetup GALLERY Hanging HangingTeardown "
        "Indented NAN_REWARD NanReward OUTPUTS PIXEL Picture Served SlowSetup Telltale Terminal "
        "Trouble drawers serve serve_apart"
    ),
    "orl_tinker": "plan train",
    "orl_local": "plan play_in_process train",
    "orl_trl": "plan reward rollout_function train",
}


def test_public_names_stay() -> None:
    """Users import these: a name that goes or comes is a decision, written down here."""
    modules = {package: importlib.import_module(package) for package in PUBLIC}
    assert {package: sorted(module.__all__) for package, module in modules.items()} == {
        package: names.split() for package, names in PUBLIC.items()
    }
    for package, module in modules.items():
        exec(f"from {package} import {', '.join(module.__all__)}" if module.__all__ else "", {})


def test_every_package_with_public_names_is_listed() -> None:
    listed = (named(path) for path in SOURCES if "__all__" in path.read_text("utf-8"))
    names = (path.split("/src/")[1].removesuffix(".py").removesuffix("/__init__") for path in listed)
    packages = {name.replace("/", ".") for name in names}
    assert packages == {*PUBLIC}


def loaded_by(statement: str) -> set[str]:
    """Return the modules of ours that a statement imports, and those that no light part may import."""
    code = f"import sys; {statement}; print(*[name for name in sys.modules if name.startswith(('orl_', 'aiohttp'))])"
    return {*subprocess.check_output([sys.executable, "-c", code], text=True).split()}


def test_package_root_loads_no_part_of_it() -> None:
    assert loaded_by("import orl_core, orl_rollout") == {"orl_core", "orl_rollout"}


def test_part_of_core_loads_no_tools_and_no_renderer() -> None:
    """A dry run and a trainer's worker read configuration and records: the parsers would double their import."""
    found = loaded_by("from orl_core import load_config, Trajectory, to_data, reduce_reward")
    assert [one for one in found if one.startswith(("orl_core.tools", "orl_core.render", "orl_core.memory"))] == []


DOCUMENTS = sorted(
    path for pattern in ("*.md", "docs/*.md", "*/*/README.md", "examples/*.py") for path in ROOT.glob(pattern)
)
IMPORT = re.compile(r"^ *(?:from|import) (orl_[\w.]+)", re.MULTILINE)


def test_documents_import_public_names_only() -> None:
    """Internal modules may move: what users read and copy imports from packages with public names."""
    imported = [(named(path), name) for path in DOCUMENTS for name in IMPORT.findall(path.read_text(encoding="utf-8"))]
    assert [one for one in imported if one[1] not in PUBLIC] == []


def test_core_states_its_version() -> None:
    project = tomllib.loads((ROOT / "packages/orl-core/pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert orl_core.__version__ == project["version"]
