"""The checks of `orl doctor`, one module for each part of a run, and the page that they write."""
