"""The configuration that `orl init` writes: a commented YAML file for one environment, which is loaded before it stays.

Values are those of the schema's defaults, or a beginner's settings for the model. Text from servers stands in comments
and quoted values only, in one printable line each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import encode
from orl_core.config import load_config
from orl_core.errors import ConfigError
from orl_core.text import visible

from orl_launcher import invocation
from orl_launcher.init.survey import Survey
from orl_launcher.playground import ORGANISATION

SCHEMA = "orl.schema.json"
TRAINING, HELD_OUT = ("train", "training"), ("test", "eval", "validation", "val", "dev", "heldout", "held_out")
LONGEST = 100  # characters of a remark in a comment
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
MEANINGS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}  # words that YAML reads as no text
COLUMN = 34  # where comments begin behind a value
NO_HOSTS = "{value: null, hosts: []}  # OpenReward knows no host for it: name one"
PLAYED_BY_TINY = (f"{ORGANISATION}GuessNumber", f"{ORGANISATION}GuessWider")


class Settings(Struct, frozen=True, kw_only=True):
    """Values to begin with, for a kind of model. Budgets are token ids; a token id has `bytes_per_id` or more bytes.

    `widest` is the longest context that is proposed.
    """

    bytes_per_id: int
    widest: int

    turn_tokens: int
    context_tokens: int


TINY = Settings(bytes_per_id=1, widest=4096, turn_tokens=48, context_tokens=512)
REAL = Settings(bytes_per_id=3, widest=131_072, turn_tokens=1024, context_tokens=8192)


def config_text(found: Survey, *, command: str, output: Path, schema: str, trainer: Mapping[str, Any]) -> str:
    """Return the text of the configuration for `found`. `command` made it, `schema` is the path of its schema.

    `trainer` are the values of the section `trainer`.
    """
    training, held_out = choose_splits(found.splits)
    model, backend = trainer["model"], trainer["backend"]
    groups = min(trainer["rollout_batch_size"], found.splits[training])
    start = TINY if model.startswith(ORGANISATION) else REAL
    file, orl = _word(str(output)), invocation()
    size = _opening_ids(found, start)
    about = f"; tools and the first prompt take about {size:,}" if size else ""
    lines = [
        f"# yaml-language-server: $schema={schema}",
        f"# Written by `{_line(command)}`. docs/configuration.md lists every key.",
        "#",
        f"#   {orl} doctor --config {file}",
        f"#   {orl} train {backend} --config {file}",
        "",
        "environments:",
        *_environment(found, training, held_out),
        "",
        *_secrets(found),
        _behind(f"openreward_run_name: {_word(found.name.rpartition('/')[2])}", "folders of runs begin with it"),
        "",
        "rollout:",
        _behind(f"  turn_tokens: {start.turn_tokens}", "most tokens of one answer"),
        _behind(f"  context_tokens: {_context(start, size)}", f"most tokens of an episode{about}"),
        "",
        "eval:",
        _behind("  interval: 10", "steps between evaluations on the held-out tasks"),
        _behind("  max_tasks: 128", "held-out tasks to play"),
        "",
        "trainer:",
        f"  backend: {backend}",
        _behind(f"  model: {_word(model)}", "a Hugging Face checkpoint, its folder, or the folder of a run"),
        _behind(f"  num_rollout: {trainer['num_rollout']}", "steps"),
        _behind(f"  rollout_batch_size: {groups}", "tasks of a step"),
        _behind(f"  n_samples: {trainer['n_samples']}", "rollouts of each task, compared with each other"),
        _behind(f"  lr: {trainer.get('lr', 'null')}", "lower it if fewer calls are valid; null: by the model"),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def choose_splits(splits: Sequence[str] | dict[str, int]) -> tuple[str, str | None]:
    """Return the split to train on and the one to hold out: by their usual names, else in their order."""
    names = [*splits]
    training = next((name for wanted in TRAINING for name in names if name.lower() == wanted), None)
    held_out = next((name for wanted in HELD_OUT for name in names if name.lower() == wanted), None)
    rest = [name for name in names if name not in (training, held_out)]
    if training is None:
        training = rest.pop(0) if rest else names[0]
    if held_out is None and rest:
        held_out = rest[0]
    return training, held_out if held_out != training else None


def write_config(output: Path, text: str) -> None:
    """Write a new file that loads.

    Raises:
        FileExistsError: it exists already.
        ConfigError: it does not load, because a server's answer cannot stand in a configuration. No file is left.
    """
    with output.open("x", encoding="utf-8") as file:
        file.write(text)
    try:
        load_config(output)
    except ConfigError:
        output.unlink()
        raise


def schema_for(output: Path, text: str) -> tuple[str, bool]:
    """Return the path from `output` to the schema for editors, `text`, and whether it has to be written there.

    In a checkout of orl it is that of configs/, elsewhere a file beside the configuration.
    """
    here = output.resolve().parent
    for folder in (here, *here.parents):
        made = folder / "configs" / "schema.json"
        if made.is_file() and made.read_text("utf-8") == text:
            return Path(os.path.relpath(made, here)).as_posix(), False
    return f"./{SCHEMA}", True


def _environment(found: Survey, training: str, held_out: str | None) -> Iterator[str]:
    yield f"  {found.name}:"
    if found.base_url:
        yield _behind(f"    base_url: {found.base_url}", "your server; it has to run while orl does")
    counts = ", ".join(f"{name} ({size} task{'' if size == 1 else 's'})" for name, size in found.splits.items())
    yield _behind(f"    splits: [{_word(training)}]", counts)
    said = "played before, during and after training" if held_out else "only one split: nothing is held out"
    yield _behind(f"    eval_splits: [{_word(held_out) if held_out else ''}]", said)
    if found.opening is None:
        yield f"    # tools: {_line(found.fault)}"
    else:
        for tool in found.opening.tools:
            yield f"    # tool {_line(tool.name)}: {_line(tool.description or 'no description')}"
        if found.opening.accepts_text_answer:
            yield "    # a plain answer ends the episode"
        yield f"    # first prompt, {len(found.prompt):,} characters: {_line(found.prompt)}"
    yield _behind("    max_turns: 20", "turns after which an episode ends")
    yield _behind("    reward_reduction: sum", "how its rewards become one number: sum, mean, max, min, last")
    yield _behind("    nonterminal_reward: 0.0", "appended if the environment did not end the episode")
    yield _behind("    success_reward: 1.0", "reward from which an episode counts as a success")


def _opening_ids(found: Survey, start: Settings) -> int:
    """Return about how many ids the tools and the first prompt have; 0 without an opening.

    It is 0 for the tiny model's own games, too: it knows their lines as single ids. It spells other texts in bytes.
    """
    if found.opening is None or (start is TINY and found.name in PLAYED_BY_TINY):
        return 0
    return (len(found.prompt.encode()) + len(encode(found.opening.tools))) // start.bytes_per_id


def _context(start: Settings, opening: int) -> int:
    """Return the context of an episode: at least four times its opening."""
    context = start.context_tokens
    while context < min(4 * opening, start.widest):
        context *= 2
    return context


def _secrets(found: Survey) -> Iterator[str]:
    """Yield the secrets of OpenReward's environment. A server of one's own tells none, so there is a place for them."""
    lines = [
        "secrets:",
        "  # null: from the variable of this name, or of its capitals. `hosts` may receive it: [api.example.com]",
        *(f"  {_word(name)}: {NO_HOSTS if name in found.hostless else 'null'}" for name in found.secrets),
        "",
    ]
    if found.secrets:
        yield from lines
    elif found.base_url:
        yield "# secrets:"
        yield _behind("#   openai_api_key: null", "a secret that your environment reads; null: from the variable")
        yield ""


def _behind(value: str, remark: str) -> str:
    """Return a line with a comment behind its value."""
    return f"{value:<{COLUMN}} # {_line(remark)}"


def _line(text: str) -> str:
    """Return `text` as one printable line, cut to LONGEST characters."""
    line = " ".join(visible(text).split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def _word(text: str) -> str:
    """Return `text` as a value in YAML, quoted where it could mean something else."""
    if WORD.fullmatch(text) and text.lower() not in MEANINGS:
        return text
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(character: str) -> str:
    safe = character.isprintable() and character not in '"\\'
    return character if safe else f"\\U{ord(character):08x}"
