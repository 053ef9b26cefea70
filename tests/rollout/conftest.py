"""The gallery of environments, served once for all tests of this folder."""

import pytest
from orl_testing.environments import serve


@pytest.fixture(scope="session")
def gallery():
    with serve() as served:
        yield served


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch):
    """No key of whoever runs the tests is used by them."""
    monkeypatch.delenv("OPENREWARD_API_KEY", raising=False)
    monkeypatch.delenv("OPENREWARD_SESSION_URL", raising=False)
