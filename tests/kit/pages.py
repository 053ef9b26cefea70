"""HTML pages as a browser reads them, and text that tries to leave its element."""

from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser

from orl_launcher.view.episode import EpisodeRows
from orl_launcher.view.report import page
from orl_launcher.view.server import Address

HOSTILE = '</pre><script>alert("1")</script><img src=x onerror=alert(1)> & \x1b[31m \u202e \x00 é漢😀'


VOID = {"meta", "link", "br", "img", "use", "path", "input"}


class Outline(HTMLParser):
    """The tags and texts of a page; fails on tags that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.headings: list[str] = []
        self.titles: list[str] = []
        self.classes: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), name
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action"):
                self.addresses.append(value or "")
            if name == "title" and tag == "span":
                self.titles.append(value or "")
            if name == "class":
                self.classes.update((value or "").split())

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2", "h3"):
            self.headings.append(data)


def outline_of(page: str) -> Outline:
    """Parse, and check what every page of ours must be."""
    outline = Outline()
    outline.feed(page)
    outline.close()
    assert outline.open == []
    assert page.startswith("<!DOCTYPE html>")
    assert outline.tags["script"] == outline.tags["img"] == outline.tags["iframe"] == 0
    assert len(outline.ids) == len(set(outline.ids))
    assert all(address.startswith(("#", "data:")) for address in outline.addresses)
    assert {address[1:] for address in outline.addresses if address[0] == "#"} <= set(outline.ids)
    assert not re.search(r"https?://|//[a-z]|@import|url\((?!#)", page)
    return outline


def page_of(*episodes: EpisodeRows) -> str:
    """Return the page of a group of episodes."""
    return page("group", title="Group", address=Address("/"), run="run", rows=[], episodes=episodes)
