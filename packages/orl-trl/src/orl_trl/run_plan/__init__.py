"""The plan of a run: its settings, memory, disk and tasks, and the checkpoint that it continues."""
