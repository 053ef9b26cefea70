"""The module in which FSDP trains: read, never imported."""


class FSDPTrainRayActor:
    """The method that logs is a function of another module."""

    def train(self) -> None:
        """Train."""
