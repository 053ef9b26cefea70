"""The miles adapter of orl."""
