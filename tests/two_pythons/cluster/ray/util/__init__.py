"""Ray's package of strategies."""
