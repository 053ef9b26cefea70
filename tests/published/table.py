"""docs/models.md: what the judge found, one row for each format and limit, and one for each reason of a refusal."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from tests.published.judge import Verdict

REASONS = {  # a reason of a refusal, and what its message holds
    "calls that no parser reads back with their types": "renders tool calls as",
    "no tool calls, and no stop token after the assistant": "not made for tools: .*none of the stop tokens",
    "no tool calls: it does not print what the assistant said": "not made for tools",
    "no stop token after the assistant: name it in `stop_tokens`": "none of the stop tokens",
    "no results of tools": "does not print the tool messages",
    "no action before a result: it does not print what the assistant said": "does not print what the assistant said",
    "roles must alternate, so no results of tools": "TemplateError",
    "the template raises an error": "applying the chat template",
}


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
    real = sum(row.real for row in rows)
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

The published vocabularies of {real} cases were there. For the others, texts and control ids are judged with merges of
our own. Sampled ids stay as they are (law L1): a template that prints an earlier part otherwise later on, such as
reasoning that it drops, is compared with the end of the whole rendering only.

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

## Templates

A name with "off" or "on" is one of both settings of its reasoning switch. `orl doctor` prints the whole reason of a
refusal.

| format, or reason of the refusal | limits | templates |
|---|---|---|
"""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in [*sorted(certified, key=lambda row: row.verdict.tool_format), *refused]:
        groups[_kind(row.verdict)].append(row)
    return head + "".join(f"| {kind} | {limits} | {_names(group)} |\n" for (kind, limits), group in groups.items())


def _kind(verdict: Verdict) -> tuple[str, str]:
    """Return the format and the limits of a certified case, or why it is refused."""
    if not verdict.certified:
        found = (name for name, words in REASONS.items() if re.search(words, verdict.reason))
        return f"refused: {next(found, _cell(verdict.reason))}", ""
    said = ["`system_prompt_template` must show the tools"] * verdict.told
    return verdict.tool_format, _cell("; ".join([*said, *verdict.limits, *verdict.wrong]))


def _names(rows: Sequence[Row]) -> str:
    """Return the names of templates, without sources; one whose settings are in different rows names its own."""
    switches: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        switches[row.name, row.source].append(row.switch)
    named = {
        name if found != ["off"] and found != ["on"] else f"{name} ({found[0]})"
        for (name, _), found in switches.items()
    }
    return ", ".join(sorted(named, key=str.lower))


def _cell(text: str) -> str:
    """Return a text that fits into a cell: one line, no bars, no tags, not too long."""
    text = re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;")
    return text if len(text) <= 400 else text[:400] + " …"


def _count(rows: Sequence[Row], kind: str) -> int:
    """Return how many differences of one kind there are."""
    found = (re.match(rf"(\d+) times {kind}", said) for row in rows for said in row.verdict.wrong)
    return sum(int(match[1]) for match in found if match)
