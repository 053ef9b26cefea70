"""The configuration that `orl init` writes: a commented YAML file for one environment, from a template.

Values are those of the schema's defaults, of the trainer, or a beginner's settings for the model. The file is loaded
before it stays. Text from servers is only in comments and quoted values, in one printable line each.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from msgspec import Struct
from msgspec.json import encode
from orl_core import ConfigError, load_config

from orl_launcher import invocation
from orl_launcher.init.survey import Survey
from orl_launcher.playground import ORGANISATION
from orl_launcher.view.wording import one_line

SCHEMA = "orl.schema.json"  # for editors, next to the configuration
TRAINING, HELD_OUT = ("train", "training"), ("test", "eval", "validation", "val", "dev", "heldout", "held_out")
LONGEST = 100  # characters of a remark in a comment
WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
MEANINGS = {"true", "false", "yes", "no", "on", "off", "y", "n", "null"}  # words that YAML reads as no text
COLUMN = 34  # at which comments begin behind a value
PLAYED_BY_TINY = (f"{ORGANISATION}GuessNumber", f"{ORGANISATION}GuessWider")


class Settings(Struct, frozen=True, kw_only=True):
    """Values to begin with, for a kind of model. Budgets are token ids; a token id has `bytes_per_id` or more bytes.

    `widest` is the longest context that is proposed.
    """

    bytes_per_id: int
    widest: int

    turn_tokens: int
    context_tokens: int


TINY = Settings(bytes_per_id=2, widest=4096, turn_tokens=48, context_tokens=512)
REAL = Settings(bytes_per_id=3, widest=131_072, turn_tokens=1024, context_tokens=8192)


def config_text(env: Survey, *, command: str, output: Path, trainer: Mapping[str, Any]) -> str:
    """Return the text of the configuration for `env`. `command` wrote it.

    `trainer` are the values of the section `trainer`.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("orl_launcher", "init")
    jinja = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True)  # noqa: S701 - YAML
    cast("dict[str, Any]", jinja.filters).update(line=partial(one_line, most=LONGEST), word=_word, remark=_remark)
    training, held_out = choose_splits(env.splits)
    start = TINY if trainer["model"].startswith(ORGANISATION) else REAL
    size = _opening_ids(env, start)
    return (
        jinja.get_template("config.yaml.j2").render(
            env=env,
            command=command,
            schema=SCHEMA,
            orl=invocation(),
            file=_word(str(output)),
            training=training,
            held_out=held_out,
            splits=", ".join(f"{name} ({size} task{'' if size == 1 else 's'})" for name, size in env.splits.items()),
            trainer=trainer,
            groups=min(trainer["rollout_batch_size"], env.splits[training]),
            turn_tokens=start.turn_tokens,
            context_tokens=_context(start, size),
            about=f"; tools and the first prompt take about {size:,}" if size else "",
        )
        + "\n"
    )


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
    """Write a new file that loads."""
    with output.open("x", encoding="utf-8") as file:
        file.write(text)
    try:
        load_config(output)
    except ConfigError:
        output.unlink()
        raise


def _opening_ids(env: Survey, start: Settings) -> int:
    """Return about how many ids the tools and the first prompt have; 0 without an opening.

    It is 0 for the tiny model's own games, too: it knows their lines as single ids.
    It spells rare words of others in bytes.
    """
    if env.opening is None or (start is TINY and env.name in PLAYED_BY_TINY):
        return 0
    return (len(env.prompt.encode()) + len(encode(env.opening.tools))) // start.bytes_per_id


def _context(start: Settings, opening: int) -> int:
    """Return the context of an episode: at least four times its opening."""
    context = start.context_tokens
    while context < min(4 * opening, start.widest):
        context *= 2
    return context


def _remark(value: str, remark: str) -> str:
    """Return a line with a comment behind its value."""
    return f"{value:<{COLUMN}} # {one_line(remark, LONGEST)}"


def _word(text: str) -> str:
    """Return `text` as a value in YAML, in quotes if it could mean something else."""
    if WORD.fullmatch(text) and text.lower() not in MEANINGS:
        return text
    safe = (char if char.isprintable() and char not in '"\\' else f"\\U{ord(char):08x}" for char in text)
    return f'"{"".join(safe)}"'
