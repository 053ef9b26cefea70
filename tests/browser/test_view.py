"""The pages of `orl view` in a real browser: contrast, keyboard, widths, no request elsewhere, hostile text."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.kit.journalled import trajectory_of
from tests.launcher.synthetic import make_run
from tests.launcher.view.runs import TOKEN, add, branching, make_cluster_run, make_hostile, make_rollouts, viewed

pytestmark = pytest.mark.browser
PAGES = (
    "",
    "run/local",
    "run/slime",
    "run/local/episodes",
    "run/local/episode/6",
    "run/agent/episode/4",
    "run/bad/episode/7",
    "run/local/group/6",
    "run/nope",
)
HINT = "token => JSON.parse(getComputedStyle(token, '::after').content)"  # what is shown of a token
RULES = ("wcag2a", "wcag2aa", "wcag21aa", "best-practice")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    make_run(root / "local", steps=4)
    make_cluster_run(root / "slime")
    add(make_rollouts(root / "agent"), branching())
    make_hostile(root / "bad")
    return root


@asynccontextmanager
async def browser() -> AsyncGenerator[Any]:
    """Chromium on PATH, else the one that Playwright has installed."""
    playwright: Any = import_module("playwright.async_api")
    own = shutil.which("chromium") or shutil.which("google-chrome")
    async with playwright.async_playwright() as started:
        launched = await started.chromium.launch(executable_path=own, args=["--no-sandbox"])
        try:
            yield launched
        finally:
            await launched.close()


def watch(page: Any, origin: str, seen: list[str]) -> None:
    """Note everything that a page of ours never does."""
    page.on("dialog", lambda dialog: seen.append(f"dialog {dialog.message}"))
    page.on("pageerror", lambda error: seen.append(f"error {error}"))
    page.on("console", lambda message: seen.append(message.text) if "status of 404" not in message.text else None)
    page.on("request", lambda request: seen.append(request.url) if not request.url.startswith((origin, "data:")) else 0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
async def test_pages_are_accessible_and_alone(runs: Path, scheme: str, width: int) -> None:
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    async with viewed(runs) as client, browser() as launched:
        origin = str(client.make_url(f"/{TOKEN}/"))
        context = await launched.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True
        )
        for path in PAGES:
            seen: list[str] = []
            page = await context.new_page()
            watch(page, origin, seen)
            await page.goto(origin + path)
            assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
            await page.evaluate(axe)
            found = await page.evaluate("names => axe.run({runOnly: names})", list(RULES))
            told = [(one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in found["violations"]]
            assert told == [], path
            assert seen == [], path
            await page.close()


async def test_hostile_text_does_nothing(runs: Path) -> None:
    async with viewed(runs) as client, browser() as launched:
        origin = str(client.make_url(f"/{TOKEN}/"))
        page = await launched.new_page()
        seen: list[str] = []
        watch(page, origin, seen)
        for path in ("", "run/bad", "run/bad/episodes", "run/bad/episode/7", "run/bad/group/7"):
            await page.goto(origin + path)
            assert await page.locator("img, iframe, script:not([src])").count() == 0
        assert "alert(1)" in await page.inner_text("main")
        assert seen == []


async def test_inline_script_is_refused(runs: Path) -> None:
    async with viewed(runs) as client, browser() as launched:
        page = await launched.new_page()
        await page.goto(str(client.make_url(f"/{TOKEN}/")))
        await page.evaluate(
            "const made = document.createElement('script'); made.textContent = 'window.ran = 1';"
            "document.body.append(made)"
        )
        assert await page.evaluate("window.ran === undefined")


async def test_keyboard_reaches_a_run(runs: Path) -> None:
    async with viewed(runs) as client, browser() as launched:
        page = await launched.new_page()
        await page.goto(str(client.make_url(f"/{TOKEN}/")))
        await page.keyboard.press("Tab")
        assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
        for _ in range(40):
            await page.keyboard.press("Tab")
            if await page.evaluate("document.activeElement.matches('#runs a')"):
                break
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/run/*")


async def test_page_shows_new_episodes_while_it_is_open(runs: Path) -> None:
    async with viewed(runs) as client, browser() as launched:
        page = await launched.new_page()
        await page.goto(str(client.make_url(f"/{TOKEN}/run/agent/episodes")))
        assert "4 episodes match" in await page.inner_text("#episodes")
        add(runs / "agent", trajectory_of(key="late"), name="99")
        await page.locator("#episodes", has_text="5 episodes match").wait_for()


async def test_phone_shows_success_and_tokens_by_tap(runs: Path) -> None:
    async with viewed(runs) as client, browser() as launched:
        origin = str(client.make_url(f"/{TOKEN}/"))
        context = await launched.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
        page = await context.new_page()
        await page.goto(origin)
        for cell in await page.locator("#runs td:nth-child(2)").all():
            box = await cell.bounding_box()
            assert box["x"] + box["width"] <= 390
        await page.goto(f"{origin}run/local/episode/6")
        token = page.locator(".turn pre span.u").first
        await token.tap()
        assert await token.evaluate(HINT) == await token.get_attribute("title")


async def test_arrow_keys_go_from_token_to_token(runs: Path) -> None:
    async with viewed(runs) as client, browser() as launched:
        page = await launched.new_page()
        await page.goto(str(client.make_url(f"/{TOKEN}/run/local/episode/6")))
        tokens = page.locator(".turn pre").first.locator("span")
        await page.locator(".turn pre").first.focus()
        for key, place in (("ArrowRight", 0), ("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
            await page.keyboard.press(key)
            assert await page.evaluate(f"({HINT})(document.activeElement)") == await tokens.nth(place).get_attribute(
                "title"
            )
