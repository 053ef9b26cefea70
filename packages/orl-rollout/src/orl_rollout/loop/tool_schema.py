"""A JSON schema from an environment, applied to arguments from a model. Neither side is trusted.

Size and nesting of both are limited, and `schema_keywords` limits the steps of a check. The module knows nothing of
tools, sessions and event loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, cast

import jsonschema_rs
from jsonschema.exceptions import ValidationError
from orl_core.text import clean, map_strings
from referencing import Registry

from orl_rollout.loop.json_size import size_of
from orl_rollout.loop.schema_keywords import METER, BoundedValidator, Meter

MOST_ERRORS = 32  # that are compared for the most helpful one
_META = jsonschema_rs.Draft202012Validator({"$ref": "https://json-schema.org/draft/2020-12/schema"})
_NOTHING_ELSEWHERE = cast("Any", Registry)()  # what a schema refers to elsewhere is not fetched


class NoSchema(ValueError):
    """A JSON value is not a JSON schema."""


class Schema:
    """A JSON schema of draft 2020-12, ready to be applied.

    Raises:
        TooLarge: it exceeds MOST_SIZE or MOST_LEVELS.
        NoSchema: it is not a schema.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._sizes: dict[int, int] = {}
        size_of(parameters)
        tree = _without_dialects(map_strings(parameters, clean))
        size_of(tree, sizes=self._sizes)
        try:
            _META.validate(tree)
        except jsonschema_rs.ValidationError as exc:
            raise NoSchema(exc.message) from exc
        self._validator = BoundedValidator(tree, registry=_NOTHING_ELSEWHERE)

    def errors(self, arguments: Mapping[str, Any], meter: Meter) -> list[ValidationError]:
        """Return what the schema has against `arguments`: at most MOST_ERRORS, none where they fit.

        Raises:
            TooLarge: the arguments exceed MOST_SIZE or MOST_LEVELS.
            TooCostly: the check needs more steps than `meter` has left.
        """
        sizes = dict(self._sizes)
        size_of(arguments, sizes=sizes)
        meter.sizes = sizes
        given = METER.set(meter)
        try:
            return list(islice(cast("Iterator[ValidationError]", self._validator.iter_errors(arguments)), MOST_ERRORS))
        finally:
            METER.reset(given)


def _without_dialects(tree: Any) -> Any:
    """Return the schema without `$schema`, which would change the validator inside it."""
    if isinstance(tree, dict):
        members = cast("dict[str, Any]", tree).items()
        return {
            key: _without_dialects(value) for key, value in members if key != "$schema" or not isinstance(value, str)
        }
    if isinstance(tree, list):
        return [_without_dialects(member) for member in cast("list[Any]", tree)]
    return tree
