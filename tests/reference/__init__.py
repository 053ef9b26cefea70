"""Pages of the documentation site that are made of the program: its commands and its error messages."""
