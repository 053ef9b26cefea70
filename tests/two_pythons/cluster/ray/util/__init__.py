"""Where Ray keeps its strategies."""
