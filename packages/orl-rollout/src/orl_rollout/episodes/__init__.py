"""Episodes after they were played: what was said in one, for whoever reads, sends or compares it."""
