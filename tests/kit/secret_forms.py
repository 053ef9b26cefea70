"""Forms in which a secret may come back in text."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus

FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "JSON": json.dumps,
    "JSON, not ASCII": lambda value: json.dumps(value, ensure_ascii=False),
    "JSON in JSON": lambda value: json.dumps(json.dumps([value])),
    "percent": lambda value: quote(value, safe=""),
    "percent, lower case": lambda value: quote(value).lower() if value.islower() else quote(value),
    "percent twice": lambda value: quote(quote(value)),
    "form": quote_plus,
    "HTML": html.escape,
    "HTML, numbers": lambda value: "".join(f"&#{ord(character)};" for character in value),
    "HTML, hex numbers": lambda value: "".join(f"&#x{ord(character):X};" for character in value),
    "hex": lambda value: value.encode().hex(),
    "hex, upper case": lambda value: "7" + value.encode().hex().upper(),
    "hex dump": lambda value: value.encode().hex(" ", 2),
    "repr": repr,
    "bytes": lambda value: repr(value.encode()),
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64, second": lambda value: base64.b64encode(f"k:{value}:".encode()).decode(),
    "base64, third": lambda value: base64.urlsafe_b64encode(f":{value};;".encode()).decode().strip("="),
    "base64 in lines": lambda value: base64.encodebytes((f"{'k' * 50}{value}").encode()).decode(),
    "JSON in base64": lambda value: base64.b64encode(json.dumps({"key": value}).encode()).decode(),
    "JSON in base64 in JSON": lambda value: json.dumps([base64.b64encode(json.dumps([value]).encode()).decode()]),
    "base64 in a query": lambda value: quote(base64.b64encode(value.encode()).decode(), safe=""),
    "folded": lambda value: " ".join(value.split()),
    "wrapped": lambda value: "\n    ".join(value[at : at + 7] for at in range(0, len(value), 7)),
    "without its ends": str.strip,
}
