"""Options of a trainer that orl sets itself: its user is told what sets them, and none is replaced in silence."""

from __future__ import annotations

import re

import pytest
from orl_cluster.launch.command.trainer_defaults import GENERATE, OWNED, refuse_by_name
from orl_core.errors import ConfigError


@pytest.mark.parametrize("name", OWNED)
def test_option_that_orl_sets_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name} is set by {OWNED[name]}")):
        refuse_by_name(["--eps-clip", name])


def test_plain_rows_may_have_a_function_of_their_own() -> None:
    refuse_by_name([GENERATE], plain=True)
    with pytest.raises(ConfigError, match="--prompt-data"):
        refuse_by_name([GENERATE, "--prompt-data"], plain=True)


def test_other_options_pass() -> None:
    refuse_by_name(["--eps-clip", "--use-kl-loss"])
