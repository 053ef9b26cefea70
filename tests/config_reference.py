"""Write docs/configuration.md, configs/schema.json and docs/output.schema.json from their types: just docs-config."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import NODEFAULT, Struct, structs
from orl_core.config import (
    AgentConfig,
    EnvironmentConfig,
    EvalConfig,
    GroupRewardConfig,
    RolloutConfig,
    RunConfig,
    Secret,
    TrainerConfig,
)
from orl_core.config.fields import description_of, values_of
from orl_core.config.schema import editor_schema
from orl_core.limits import TrainOn
from orl_launcher import reports, trainers

ROOT = Path(__file__).parent.parent
INTRODUCTION = """\
# Configuration

<!-- Written by `just docs-config` from the schema in packages/orl-core/src/orl_core/config. Do not edit. -->

A run is configured by one YAML file, such as those in `configs/`. Only `environments` is required. On the
command line, `--set path.to.key=value` overrides any key. `orl train` has an option for each key of `trainer` and
of the sections of its trainer: `rollout_batch_size` is `--rollout-batch-size`. An unknown key, a wrong type or a value
out of bounds is refused before anything starts, with file and `$.path`, and one message names every mistake.
`orl doctor --config FILE` checks a file.

The first line of each file in configs/ names `configs/schema.json`, with which editors complete and
check keys. The schema refuses less than orl does: checks between keys, such as deadlines that must nest, are orl's.
"""
SECTIONS: dict[str, type[Struct]] = {
    "Top level": RunConfig,
    "`environments.NAME`": EnvironmentConfig,
    "`secrets.NAME`": Secret,
    "`agent`": AgentConfig,
    "`rollout`": RolloutConfig,
    "`rollout.train_on`": TrainOn,
    "`eval`": EvalConfig,
    "`group_reward`": GroupRewardConfig,
    "`trainer`": TrainerConfig,
}


def reference() -> str:
    """Return docs/configuration.md: a table for each section, and one for the defaults of trainers."""
    own = {f"`trainer.{name}`": section for name, section in trainers.sections().items()}
    lines = (line for title, section in {**SECTIONS, **own}.items() for line in _section(title, section))
    return "".join([INTRODUCTION, *lines, *_defaults()])


def schema() -> str:
    """Return configs/schema.json, with the sections of all adapters."""
    return editor_schema(trainers.sections())


def outputs() -> str:
    """Return docs/output.schema.json: what commands print with --json."""
    made = reports.schema()
    for section in made["$defs"].values():
        section["description"] = " ".join(section["description"].split())
    return json.dumps(made, indent=2, ensure_ascii=False) + "\n"


def _section(title: str, section: type[Struct]) -> Iterator[str]:
    purpose = " ".join((section.__doc__ or "").split())
    yield f"\n## {title}\n\n{purpose}\n\n| key | type | default | meaning |\n|---|---|---|---|\n"
    for field in structs.fields(section):
        if field.name != "sections":
            cells = (f"`{field.encode_name}`", values_of(field.type), _default(field), description_of(field.type))
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _defaults() -> Iterator[str]:
    found = {name: trainers.find_trainer(name).defaults for name in trainers.installed()}
    yield "\n## Defaults of trainers\n\nThe value of a key of `trainer` that is null.\n\n"
    yield f"| key | {' | '.join(found)} |\n"
    yield f"|---|{'---|' * len(found)}\n"
    for key in dict.fromkeys(key for defaults in found.values() for key in defaults):
        cells = (f"`{defaults[key]}`" if key in defaults else "by the trainer" for defaults in found.values())
        yield f"| `{key}` | {' | '.join(cells)} |\n"


def _default(field: structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default if field.default_factory is NODEFAULT else field.default_factory()
    if isinstance(value, Struct):
        return "see below"
    return f"`{msgspec.json.encode(value).decode()}`"


FILES = {
    ROOT / "docs" / "configuration.md": reference,
    ROOT / "configs" / "schema.json": schema,
    ROOT / "docs" / "output.schema.json": outputs,
}


if __name__ == "__main__":
    for file, text in FILES.items():
        file.write_text(text(), encoding="utf-8")
