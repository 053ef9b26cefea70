"""The entry point of asynchronous training; see train.py."""

import train  # noqa: F401
