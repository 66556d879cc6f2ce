"""Pictures of the page for the docs: `make screenshots` starts the server with the default model and looks at it.

    python bench/screenshots.py [--out docs/pictures] [--model smollm2-135m]

Needs Chromium (Debian: chromium) and the `playwright` package; no other browser is fetched.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from served import served

ROOT = Path(__file__).parent.parent
WIDE, PHONE, LOW = {"width": 1100, "height": 760}, {"width": 390, "height": 780}, {"width": 1100, "height": 600}
COPY = (
    "Repeat this text: A clover folds its leaves at night and opens them again in the morning. "
    "Bees visit its flowers all summer, and carry what they find back to the hive."
)
QUESTION = "Explain photosynthesis in three sentences."

HOLD = """() => {
    const read = ReadableStreamDefaultReader.prototype.read;
    ReadableStreamDefaultReader.prototype.read = function () {
        const count = (what) => document.querySelectorAll(`.streaming ${what}`).length;
        const text = document.querySelector('.streaming > span')?.textContent ?? '';
        if (text.length < 120 || count('.proposed') < 3 || !count('.masked')) return read.call(this);
        document.documentElement.dataset.held = '';
        return new Promise(() => {});
    };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--model", default="smollm2-135m")
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("this needs Chromium: apt-get install chromium")
    options.out.mkdir(parents=True, exist_ok=True)
    with served(options.model) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            page = opened(browser, url, WIDE, theme)
            midway(page)
            page.screenshot(path=options.out / f"page-chat-{theme}.png")
            page.close()
        page = opened(browser, url, PHONE, "light")
        midway(page)
        page.screenshot(path=options.out / "page-phone.png")
        page.close()
        page = opened(browser, url, LOW, "light")
        page.get_by_role("tab", name="Race").click()
        page.get_by_label("Prompt of the race").fill(COPY)
        page.get_by_role("button", name="Race", exact=True).click()
        page.locator("#verdict b").wait_for(timeout=120_000)
        page.wait_for_timeout(600)
        page.screenshot(path=options.out / "page-race.png")
        browser.close()


def opened(browser: Browser, url: str, size: dict[str, int], theme: str) -> Page:
    """The page in a new window."""
    context = browser.new_context(viewport=size, color_scheme=theme, device_scale_factor=1.5)
    page = context.new_page()
    page.goto(url)
    return page


def midway(page: Page) -> None:
    """One finished answer, and a second one that is being written: the page stops reading once the canvas shows."""
    page.get_by_label("Message", exact=True).fill("Name the capital of France.")
    page.keyboard.press("Enter")
    page.locator(".stats").wait_for(timeout=60_000)
    page.evaluate(HOLD)
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    page.locator("html[data-held]").wait_for(timeout=60_000)


if __name__ == "__main__":
    main()
