"""orl_playground: two small OpenReward environments on a real server, and a tiny model to train on them.

It must not know any trainer. Importing this package imports nothing else: `server` starts the environments,
`warm_start` makes the model, and each brings its own heavy libraries when it is used.
The other modules are internal.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orl_playground import server, warm_start

__all__ = ["server", "warm_start"]
