"""What a run looks like: on the terminal, as pictures, and as one self-contained HTML page."""
