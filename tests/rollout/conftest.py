"""The gallery of environments, served once for all tests of this folder."""

import pytest
from orl_rollout.testing.environments import serve


@pytest.fixture(scope="session")
def gallery():
    with serve() as served:
        yield served
