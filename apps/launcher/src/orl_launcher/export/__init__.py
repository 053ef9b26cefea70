"""Episodes of a journal as chat data, in files that other programs load."""
