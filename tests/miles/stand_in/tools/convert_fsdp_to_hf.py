"""Parses like miles' tool."""

import argparse

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("--input-dir", "--output-dir", "--origin-hf-dir"):
        parser.add_argument(name, required=True)
    parser.add_argument("-f", "--force", action="store_true")
    parser.parse_args()
