"""The platform that uploads are sent to, on loopback."""

import pytest

from tests.kit.collector import Collector


@pytest.fixture
def platform(monkeypatch):
    collector = Collector()
    with collector.serving():
        monkeypatch.setenv("OPENREWARD_API_KEY", "or-key-0123456789")
        monkeypatch.setenv("OPENREWARD_API_URL", collector.url)
        yield collector
