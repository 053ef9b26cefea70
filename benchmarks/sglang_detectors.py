"""SGLang's function-call detectors behind a pipe: requests in JSON lines on stdin, answers on stdout.

Runs in an environment of its own that holds SGLang without its dependencies (`benchmarks.parsers` makes it), and
imports nothing of ours. `import sglang` would want torch; so its packages are registered bare, with their folders, and
only the modules that a detector needs are ever executed. What is timed is one parse, detector construction included,
because SGLang makes one for each request.
"""

# pyright: reportMissingImports=false

import importlib.util
import json
import logging
import sys
import time
import types
from pathlib import Path

PACKAGES = ("", ".srt", ".srt.entrypoints", ".srt.entrypoints.openai", ".srt.parser", ".srt.function_call")


def install() -> None:
    """Register SGLang's packages without executing them."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or spec.origin is None:
        raise ImportError("sglang is not installed here")
    root = Path(spec.origin).parent
    for package in PACKAGES:
        module = types.ModuleType(f"sglang{package}")
        module.__path__ = [str(root.joinpath(*package.split(".")))]
        sys.modules[module.__name__] = module
    utils = types.ModuleType("sglang.utils")
    utils.__dict__["convert_json_schema_to_str"] = str  # what the protocol imports and no detector calls
    sys.modules["sglang.utils"] = utils


def main() -> None:
    install()
    logging.disable(logging.CRITICAL)
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser

    for line in sys.stdin:
        request = json.loads(line)
        tools = [Tool(type="function", function=tool) for tool in request["tools"]]
        seconds = []
        answer = {"calls": [], "error": ""}
        for _ in range(request["repeat"]):
            started = time.perf_counter()
            try:
                _, calls = FunctionCallParser(tools, request["parser"]).parse_non_stream(request["text"])
                answer["calls"] = [[call.name, call.parameters] for call in calls]
            except Exception as exc:  # noqa: BLE001 - a detector that raises is a finding
                answer["error"] = f"{type(exc).__name__}: {exc}"
            seconds.append(time.perf_counter() - started)
        answer["seconds"] = min(seconds)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
