"""The Sample, as far as a probe looks at it."""


class Sample:
    """A row of training data."""

    def append_response_tokens(self) -> None:
        """Read what the engine returned to replay."""
