"""slime's health monitor kills an engine that hangs, and the rollouts go on with the others."""

from __future__ import annotations

import pytest

from tests.kit.health import hold_that_a_hanging_engine_is_replaced
from tests.slime.host import of_slime

pytestmark = pytest.mark.slime


async def test_hanging_engine_is_killed_and_rollouts_go_on(monkeypatch: pytest.MonkeyPatch):
    await hold_that_a_hanging_engine_is_replaced(of_slime("slime.utils.health_monitor"), monkeypatch)
