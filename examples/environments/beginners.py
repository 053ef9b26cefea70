"""Play the tasks of this folder badly, with valid calls: what `orl warm-start` shows a model before it trains.

    orl warm-start --config configs/tasks/textarena.yaml --player beginners:presser     in this folder, or on PYTHONPATH

Each function sees the messages of the episode so far and returns a call. None needs the package of its tasks.
"""

import random
import re


def reader(messages):
    """Answer with the name of any statement."""
    statements = text_of(messages, "user").partition("\n")[0].split(". ")
    return "answer", {"name": random.choice([statement.split()[0] for statement in statements if statement.strip()])}


def presser(messages):
    """Press any button."""
    named = re.search(r"buttons: ([a-z, ]+)\.", text_of(messages, "user"))
    return "press", {"button": random.choice(named[1].split(", ") if named else ["red"])}


def tidier(messages):
    """Do any of the actions."""
    actions = text_of(messages, "user", "tool").rpartition("Actions: ")[2].split(", ")
    return "act", {"action": random.choice(actions)}


def text_of(messages, *roles):
    """Return the text of the messages of `roles`."""
    blocks = [block for message in messages if message.role in roles for block in message.content]
    return "\n".join(getattr(block, "text", "") for block in blocks)
