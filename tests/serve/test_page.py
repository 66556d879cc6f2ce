"""The page in a real browser: chat, canvas, stop, race, reload, tabs, themes, phones, keys."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect, sync_playwright

import trifolium
from running_server import RunningServer, running
from trifolium.serve.site import HEADERS, PAGE

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None and not os.environ.get("CI"), reason="there is no Chromium here")
QUESTION = "What is a prime number?"
LONG = 15_000

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def nano_server() -> Iterator[RunningServer]:
    """The packaged model, which writes words."""
    with running("nano", dtype="auto") as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "CI has to have Chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context()
    context.set_default_timeout(LONG)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, nano_server: RunningServer) -> Iterator[Page]:
    with opened(context, nano_server.url) as page:
        yield page


@contextmanager
def opened(context: BrowserContext, url: str) -> Iterator[Page]:
    """The page; afterwards: nothing went wrong in it, and it asked nobody but its server."""
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(url) else problems.append(request.url))
    page.goto(url)
    yield page
    assert not problems


def ask(page: Page, text: str, max_tokens: int = 24) -> None:
    limit(page, max_tokens)
    page.get_by_label("Message", exact=True).fill(text)
    page.get_by_label("Message", exact=True).press("Enter")


def limit(page: Page, max_tokens: int) -> None:
    if page.locator("[name=max_tokens]").input_value() == str(max_tokens):
        return
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Longest answer, tokens").fill(str(max_tokens))
    page.get_by_role("button", name="Done").click()


def seen_cells(page: Page) -> set[str]:
    """The classes of all cells that answers show from now on, however shortly."""
    states: set[str] = set()
    page.expose_function("saw", lambda kind: states.add(kind))
    page.evaluate(
        """() => new MutationObserver(() => {
            for (const cell of document.querySelectorAll('#messages .cell')) saw(cell.className);
        }).observe(document.querySelector('#messages'), {childList: true, subtree: true})"""
    )
    return states


def answers(page: Page) -> list[str]:
    return page.locator(".message.assistant .answer").all_inner_texts()


def test_chat_equals_the_server_s_answer_and_the_canvas_is_seen(page):
    lm = trifolium.load("nano", progress=False)
    states = seen_cells(page)
    ask(page, QUESTION)
    expect(page.locator(".stats")).to_contain_text("tokens in")
    assert states == {"cell proposed", "cell masked"}
    expected = lm.generate(QUESTION, max_tokens=24).text
    assert answers(page)[0].split() == expected.split()
    assert page.locator("#messages .cell").count() == 0
    ask(page, "And then?")
    expect(page.locator(".stats")).to_have_count(2)
    stats = page.locator(".stats").last.inner_text()
    assert "verified" in stats and "passes" in stats and "tok/s" in stats and "first after" in stats


def test_stop_cancels_the_answer_in_the_server(page, nano_server):
    before = nano_server.counter("trifolium_answers_total", finish_reason="cancelled")
    ask(page, "Count.", 4000)
    expect(page.locator(".streaming > span").first).not_to_be_empty()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".stats")).to_contain_text("stopped")
    nano_server.wait_until_idle()
    assert nano_server.counter("trifolium_answers_total", finish_reason="cancelled") == before + 1
    ask(page, QUESTION)
    expect(page.locator(".stats")).to_have_count(2)


def test_race_of_equal_texts(page):
    limit(page, 32)
    page.get_by_role("tab", name="Race").click()
    page.get_by_label("Prompt of the race").fill(QUESTION)
    page.get_by_role("button", name="Race", exact=True).click()
    expect(page.locator("#verdict")).to_contain_text("The texts are identical.", timeout=LONG)
    lanes = page.locator(".lane")
    expect(lanes).to_have_count(2)
    texts = lanes.locator(".answer").all_inner_texts()
    assert texts[0] == texts[1] and texts[0]
    passes = [int(lane.locator("dd").nth(2).inner_text()) for lane in lanes.all()]
    assert passes[0] in (32, 33) and passes[1] <= passes[0]


def test_reload_keeps_the_chat_and_tabs_have_their_own(page, context, nano_server):
    ask(page, QUESTION)
    expect(page.locator(".stats")).to_be_visible()
    said = answers(page)
    page.reload()
    assert answers(page) == said
    with opened(context, nano_server.url) as other:
        expect(other.locator("#empty")).to_be_visible()
        ask(other, "Something else")
        expect(other.locator(".stats")).to_be_visible()
    page.reload()
    assert answers(page) == said
    page.get_by_role("button", name="New", exact=True).click()
    expect(page.locator("#empty")).to_be_visible()
    page.reload()
    expect(page.locator("#empty")).to_be_visible()


def test_unfinished_answers_stay_in_their_chat(page, nano_server):
    writing = page.locator(".streaming > span").first
    ask(page, "Count.", 4000)
    expect(writing).not_to_be_empty()
    page.get_by_role("button", name="Settings").click()
    page.keyboard.press("Escape")  # is the dialog's
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.reload()  # keeps what had come
    expect(page.locator(".stats")).to_contain_text("broken off")
    assert answers(page)[0].strip()
    ask(page, "Count.", 4000)
    expect(writing).not_to_be_empty()
    page.get_by_role("button", name="New", exact=True).click()
    nano_server.wait_until_idle()
    expect(page.locator("#empty")).to_be_visible()
    expect(page.locator(".message")).to_have_count(0)
    ask(page, QUESTION, 8)
    expect(page.locator(".stats")).to_have_count(1)


def test_stores_that_hold_anything_are_survived(page):
    keep = "text => sessionStorage.setItem('trifolium.chat', text)"
    page.evaluate("localStorage.setItem('trifolium.settings', '{\"gone\": 1}')")  # by a page of another version
    page.evaluate(keep, "[null, 1, {}]")
    page.reload()
    expect(page.locator("#empty")).to_be_visible()
    page.evaluate(keep, "{bad")
    page.reload()
    expect(page.locator("#empty")).to_be_visible()
    page.evaluate(keep, '[{"role": "user", "content": "Left alone."}]')
    page.reload()
    limit(page, 8)
    page.get_by_role("button", name="Answer", exact=True).click()
    expect(page.locator(".stats")).to_have_count(1)


def test_keys_are_enough(page):
    message = page.get_by_label("Message", exact=True)
    expect(message).to_be_focused()
    page.keyboard.type("One")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(message).to_have_value("One\ntwo")
    limit(page, 4000)
    message.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".streaming > span").first).not_to_be_empty()
    page.keyboard.press("Escape")
    expect(page.locator(".stats")).to_contain_text("stopped")
    expect(message).to_be_focused()
    page.get_by_role("tab", name="Chat").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Race")).to_be_focused()
    expect(page.locator("#race")).to_be_visible()


def test_listeners_hear_only_what_is_final(page):
    log = page.get_by_role("log")
    assert log.get_attribute("aria-live") == "polite"
    ask(page, QUESTION, 60)
    page.locator("#messages .canvas").wait_for(state="attached")
    assert page.locator("#messages .canvas").get_attribute("aria-hidden") == "true"
    expect(page.locator(".stats")).to_be_visible()
    page.evaluate(
        """() => new MutationObserver(changes => {
            window.heard = (window.heard || '') + changes.flatMap(c => [...c.addedNodes])
                .filter(node => !(node.nodeType === 1 ? node : node.parentElement)?.closest('[aria-live=off]'))
                .map(node => node.textContent).join('');
        }).observe(document.querySelector('#messages'), {childList: true, subtree: true})"""
    )
    ask(page, "Something else", 8)
    expect(page.locator(".stats")).to_have_count(2)
    heard = page.evaluate("window.heard")
    assert "Something else" in heard and QUESTION not in heard  # a turn does not say the earlier ones again
    for control in page.locator("button:visible, textarea:visible, input:visible, select:visible").all():
        name = control.evaluate("e => e.ariaLabel || e.innerText || (e.labels && e.labels[0]?.innerText) || ''")
        assert name.strip(), control.evaluate("e => e.outerHTML")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phones_and_themes(browser, nano_server, scheme):
    context = browser.new_context(viewport={"width": 360, "height": 700}, color_scheme=scheme)
    context.set_default_timeout(LONG)
    with opened(context, nano_server.url) as page:
        ask(page, "A" * 300)
        expect(page.locator(".stats")).to_be_visible()
        for view in ("Chat", "Race"):
            page.get_by_role("tab", name=view).click()
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
        shade = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)"
        assert (sum(page.evaluate(shade)) > 384) == (scheme == "light")
        button = page.locator("#theme")
        button.click()
        assert sum(page.evaluate(shade)) > 384  # light, whatever the system says
        button.click()
        assert sum(page.evaluate(shade)) < 384
        page.reload()
        assert sum(page.evaluate(shade)) < 384
    context.close()


def test_markup_stays_text(page):
    attack = "<img src=x onerror=\"document.title='taken'\"> **<script>document.title='taken'</script>**"
    ask(page, attack)
    expect(page.locator(".stats")).to_be_visible()
    assert page.locator(".message.user .body").inner_text() == attack
    made = page.evaluate(
        """async text => {
            const { formatted } = await import('/page/render.js');
            const box = document.createElement('div');
            box.append(...formatted(text + '\\n\\n```html\\n' + text + '\\n```\\n- ' + text));
            document.body.append(box);
            return [box.querySelectorAll('img, script').length, box.querySelectorAll('pre, li, b').length];
        }""",
        attack,
    )
    assert made == [0, 4]
    assert page.title() == "Trifolium"


def test_wrong_keys_and_ended_servers_are_explained(context):
    with running("nano", dtype="auto", api_key="open sesame") as server:
        with opened(context, server.url) as page:
            ask(page, QUESTION)
            expect(page.get_by_role("alert")).to_contain_text("API key")
            page.get_by_role("button", name="Settings").click()
            page.get_by_label("API key").fill("open sesame")
            page.get_by_role("button", name="Done").click()
            page.get_by_role("button", name="Try again").click()
            expect(page.locator(".stats")).to_be_visible()
        page = context.new_page()
        page.goto(server.url)
    ask(page, QUESTION)
    expect(page.get_by_role("alert")).to_contain_text("can't be reached")


def test_the_page_is_kept_to_itself(page):
    response = page.goto(page.url)
    assert response is not None
    policy = response.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy
    assert response.headers["x-content-type-options"] == "nosniff"


def test_markup_of_a_model_stays_text(page):
    """The model has to say it: the page's own request goes on to the server with a constraint added."""
    attack = "<img src=x onerror=\"document.title='taken'\"> [text](javascript:alert(1))"

    def constrain(route: Route) -> None:
        route.continue_(post_data={**route.request.post_data_json, "guided_choice": [attack]})

    page.route("**/v1/chat/completions", constrain)
    ask(page, QUESTION, 120)
    expect(page.locator(".stats")).to_be_visible()
    assert answers(page) == [attack]
    assert page.locator("#messages img, #messages a").count() == 0
    page.reload()
    assert answers(page) == [attack]
    assert page.title() == "Trifolium"


def test_diffusion_shows_what_is_accepted_before_its_turn(page):
    states = seen_cells(page)
    page.get_by_role("button", name="Settings").click()
    page.locator("select[name=mode]").select_option("diffusion")
    page.get_by_role("button", name="Done").click()
    ask(page, QUESTION)
    expect(page.locator(".stats")).to_contain_text("diffusion")
    assert {"cell proposed", "cell pinned"} <= states


def test_systems_with_their_own_colours_still_show_the_cells(page):
    page.emulate_media(forced_colors="active")
    looks = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('.legend .cell')].map(cell => {
            const style = getComputedStyle(cell);
            return [cell.className, `${style.borderTopStyle} ${style.borderBottomStyle}`];
        }))"""
    )
    assert looks["cell masked"] == "solid solid"
    assert len(set(looks.values())) == 4, looks


def test_every_file_of_the_page_is_kept_to_itself(nano_server):
    for path in ["/", *(f"/page/{file.name}" for file in PAGE.iterdir())]:
        response = nano_server.client.get(path)
        assert response.status_code == 200
        assert response.headers["content-security-policy"] == HEADERS["Content-Security-Policy"], path
        assert response.headers["x-content-type-options"] == "nosniff", path


def test_earlier_messages_can_be_sent_again_otherwise(page):
    for count, asked in enumerate(("One", "Two", "Three"), start=1):
        ask(page, asked, 8)
        expect(page.locator(".stats")).to_have_count(count)
    first = answers(page)[0]
    message = page.get_by_label("Message", exact=True)
    said = page.locator(".message.user .body")
    edit = page.get_by_role("button", name="Edit").nth(1)
    edit.focus()
    page.keyboard.press("Enter")
    expect(message).to_be_focused()
    expect(message).to_have_value("Two")
    expect(page.locator("#revising")).to_contain_text("replaces")
    expect(page.locator("#revising")).to_be_in_viewport()
    expect(page.locator(".message.going")).to_have_count(4)
    page.keyboard.press("Escape")  # leaves everything as it was
    expect(page.locator(".message.going")).to_have_count(0)
    expect(message).to_have_value("")
    expect(said).to_have_text(["One", "Two", "Three"])
    edit.click()
    message.fill("Another")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.keyboard.press("Enter")
    body = sent.value.post_data_json
    assert body is not None and [turn["content"] for turn in body["messages"]] == ["One", first, "Another"]
    expect(page.locator(".stats")).to_have_count(2)
    page.reload()
    expect(said).to_have_text(["One", "Another"])
