"""Tasks: draw them from the environments' listings into tasks.jsonl, and read that file."""
