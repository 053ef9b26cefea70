"""Names: those of tool formats, those that a model hub can have, and those from outside in a URL or a header.

A name that could hold `/` would choose the host that a request goes to, and with it who receives the key (law L6).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, get_args

from msgspec import Meta

ToolFormat = Literal[
    "hermes",
    "qwen3_coder",
    "glm45",
    "llama3",
    "mistral",
    "deepseek",
    "kimi_k2",
    "gpt_oss",
    "minimax",
    "pythonic",
    "cohere",
    "gemma4",
    "olmo3",
    "seed_oss",
    "json_array",
    "lfm2_5",
    "opened_array",
]
PATHS = (".", "~", "/", "runs/", "models/")  # begin a path: no hub has an owner of these names
TOOL_FORMATS: tuple[ToolFormat, ...] = get_args(ToolFormat)

_SEGMENT = r"(?!\.{1,2}(?:/|\Z))[A-Za-z0-9_.-]{1,200}"  # `.` and `..` would leave the path

PathName = Annotated[str, Meta(pattern=rf"^{_SEGMENT}\Z", title="name in A-Za-z0-9_.-")]
EnvironmentName = Annotated[
    str,
    Meta(
        pattern=rf"^{_SEGMENT}(?:/{_SEGMENT})+\Z",
        title="Organization/Environment in A-Za-z0-9_.-, with its version as the key `version`",
    ),
]


def is_path_name(name: str) -> bool:
    """Return whether `name` can be one segment of a URL's path: letters, digits, `_`, `.` and `-`."""
    return re.fullmatch(_SEGMENT, name) is not None


def download_of(model: str, before: str, what: str = "--local-dir FOLDER") -> str:
    """Return `before` and the command that gets `what` of `model`; "" if no hub can have such a name."""
    named = model.count("/") == 1 and not model.startswith((*PATHS, "playground/"))
    return f"{before}`hf download {model} {what}`" if named else ""
