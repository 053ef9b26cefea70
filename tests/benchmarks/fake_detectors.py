"""A stand-in for what `benchmarks.sglang_detectors` serves, by our own parsers: the benchmark alone installs SGLang.

`raising` as the argument makes the llama3 detector raise.
"""

import json
import sys

from orl_core.messages import ToolCall
from orl_core.tools import ToolFormat, parse

from benchmarks.corpus import READERS, TOOLS
from benchmarks.parsers import HARMONY
from tests.core.tools.wire import WIRES

FORMATS: dict[str, ToolFormat] = {detector: WIRES[wire].format for wire, detector in READERS}

for line in sys.stdin:
    request = json.loads(line)
    text = request["text"].removeprefix(HARMONY)
    calls = parse(text, FORMATS[request["parser"]], tools=TOOLS).calls
    raises = sys.argv[1:] == ["raising"] and request["parser"] == "llama3"
    answer = {
        "calls": [[call.name, json.dumps(call.arguments)] for call in calls if isinstance(call, ToolCall)],
        "error": "KeyError: name" if raises else "",
        "seconds": 0.00001,
    }
    print(json.dumps(answer), flush=True)
