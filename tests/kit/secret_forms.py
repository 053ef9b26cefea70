"""Forms in which a secret is found if it comes back in text: those of law L6."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "without its ends": str.strip,
    "JSON": json.dumps,
    "JSON, not ASCII": lambda value: json.dumps(value, ensure_ascii=False),
    "percent": lambda value: quote(value, safe=""),
    "percent, lower case": lambda value: re.sub("%[0-9A-F]{2}", lambda each: each[0].lower(), quote(value)),
    "percent of JavaScript": lambda value: quote(value, safe="!'()*"),
    "form": quote_plus,
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64, second": lambda value: base64.b64encode(f"k:{value}:".encode()).decode(),
    "base64, third": lambda value: base64.urlsafe_b64encode(f":{value};;".encode()).decode().strip("="),
}
