"""The list of models: one body that OpenAI's and Anthropic's clients read."""

from __future__ import annotations

from typing import Any


def models_body(name: str) -> dict[str, Any]:
    """Return the list of the one model `name`."""
    model = {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "orl",
        "type": "model",
        "display_name": name,
        "created_at": "1970-01-01T00:00:00Z",
    }
    return {"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name}
