"""The documentation site builds without a warning, holds every page, and asks no other host for anything."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import orl_core
import pytest

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
REQUEST = re.compile(r"""(?:@import|url\()\s*["']?(?:https?:)?//""")


class Page(HTMLParser):
    """Collects what a browser loads by itself when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in LOADED and given.get("rel") not in ("canonical", "next", "prev"):
            self.loaded.append(given.get(LOADED[tag]) or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the folder of the site, which is built with every warning as an error."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("mkdocs").addHandler(handler)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("NO_MKDOCS_2_WARNING", "1")
        build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    assert said == []
    yield folder
    logging.getLogger("mkdocs").removeHandler(handler)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_site_needs_no_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 10
    for path in pages:
        page = Page()
        page.feed(path.read_text("utf-8"))
        assert page.loaded
        assert [name for name in page.loaded if re.match(r"(https?:)?//", name)] == [], path.name
    names = re.findall(r'id="(orl_core\.\w+)"', (site / "api.html").read_text("utf-8"))
    assert {*names} == {f"orl_core.{name}" for name in orl_core.__all__}
    assert [path.name for path in site.rglob("*.css") if REQUEST.search(path.read_text("utf-8"))] == []
