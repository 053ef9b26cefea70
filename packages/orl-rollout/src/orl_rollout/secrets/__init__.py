"""Secrets: resolve their values, and remove their echoes from text in any encoding."""
