"""The laws' own number of examples: 500 where the profile is `ci`, else those of the profile."""

from collections.abc import Generator

import pytest
from hypothesis import settings

PROFILES = {"ci": "ci-laws"}


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Import the modules of this folder under the laws' profile: `@given` keeps the settings of its import."""
    profile = settings.get_current_profile_name()
    settings.load_profile(PROFILES.get(profile, profile))
    try:
        return (yield)
    finally:
        settings.load_profile(profile)
