"""Views of a run: on the terminal, as pictures, and as one self-contained HTML page."""
