"""The journal: every trajectory on disk before it counts, as zstd frames of JSON with packed arrays."""
