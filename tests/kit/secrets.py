"""A scrubber for tests without secrets. The product has none: forgetting the real one must not compile."""

from orl_rollout.edge.secrets import Scrubber

NO_SECRETS = Scrubber(())
