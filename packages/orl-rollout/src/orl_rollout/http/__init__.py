"""HTTP to one origin with answers of bounded size, and JSON of bounded depth."""
