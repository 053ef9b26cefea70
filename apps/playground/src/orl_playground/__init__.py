"""orl_playground: two small OpenReward environments on a real server, and scripted players of their game.

It must not know any trainer. Importing this package imports nothing else: `server` starts the environments, and brings
its own libraries when it is used. The other modules are internal.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orl_playground import server

__all__ = ["server"]
