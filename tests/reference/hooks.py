"""A hook of mkdocs: adds the pages that are made of the program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

from tests.reference import commands, errors

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

PAGES = {"commands.md": commands.page, "errors.md": errors.page}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages to those of docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files
