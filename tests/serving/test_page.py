"""The page in headless Chromium, by keyboard and on a phone."""

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")

from browser import CHROMIUM, Browser
from serving import FakeRecommender, Running, with_context

from recsys.serving.opening import open_bundle

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium, which is not installed"),
]


@pytest.fixture(scope="module")
def server():
    with Running(versions=(1, 2), kind=FakeRecommender) as running:
        yield running


@pytest.fixture(scope="module")
def browser():
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture
def page(browser, server):
    browser.size(1200, 900)
    browser.said.clear()
    browser.open("about:blank")
    browser.open(server.url)
    browser.wait_for("document.querySelector('#version-a').value")
    yield browser
    assert browser.said == []  # No error, and nothing that the policy refused.


def open_user(page, server):
    page.open("about:blank")  # Else the same page would stay, with another fragment.
    page.open(f"{server.url}/#user=u1")


def shown(page):
    page.wait_for("!document.querySelector('#lists').hidden")
    return page.texts("#list-a .title")


def test_a_user_is_found_and_chosen_by_keyboard_alone(page):
    while page.focused() != "user":
        page.press("Tab")
    page.type("u")
    page.wait_for("document.querySelectorAll('#user-list [role=option]').length === 2")
    assert page.run("document.querySelector('#user').getAttribute('aria-expanded')") == "true"
    page.press("ArrowUp")
    assert (
        page.run("document.querySelector('#user').getAttribute('aria-activedescendant')")
        == "user-list-1"
    )
    page.press("ArrowDown")
    page.press("Enter")
    page.wait_for("document.querySelector('#status').innerText.includes('for u1')")
    assert page.texts("#history .title") == ["Red Sea", "Blue Sea"]
    assert page.run("document.querySelector('#user-list').hidden")


def test_escape_closes_the_list_and_then_clears_the_field(page):
    page.run("document.querySelector('#user').focus()")
    page.type("u")
    page.wait_for("!document.querySelector('#user-list').hidden")
    page.press("Escape")
    assert page.run("document.querySelector('#user-list').hidden")
    page.press("Escape")
    assert page.run("document.querySelector('#user').value") == ""


def test_a_taste_of_items_grows_and_shrinks_and_titles_are_never_markup(page):
    page.run("document.querySelector('#item').focus()")
    page.type("script")
    page.wait_for("document.querySelectorAll('#item-list [role=option]').length === 1")
    assert "<script>alert(1)</script>" in page.text("#item-list")
    page.press("Enter")
    shown(page)
    assert page.texts("#taste button") == ["<script>alert(1)</script> ×"]
    assert page.text("#status").startswith(
        "4 items for the chosen items, by these items: version 2 in "
    )
    page.run("document.querySelector('#list-a button[aria-label^=Add]').click()")
    page.wait_for("document.querySelectorAll('#taste button').length === 2")
    page.run("document.querySelectorAll('#taste button')[1].click()")
    page.wait_for("document.querySelectorAll('#taste button').length === 1")


def test_context_is_set_in_a_field_of_its_column(browser):
    with Running(versions=(1,), kind=with_context) as running:
        browser.said.clear()
        browser.open(f"{running.url}/#user=u1&context+device=phone")
        shown(browser)
        assert browser.run("document.querySelector('#context input').value") == "phone"
        browser.run("document.querySelector('#context input').value = 'tv'")
        browser.run("document.querySelector('#context input').dispatchEvent(new Event('change'))")
        browser.wait_for("location.hash.includes('tv')")
        contexts = [
            x["context_device"] for x in running.pool.model().asked if "context_device" in x
        ]
        assert contexts[0] == [[b"phone"]]
        assert browser.said == []


def test_a_category_is_found_by_keyboard_and_narrows_what_is_recommended(page, server):
    open_user(page, server)
    before = shown(page)
    page.run("document.querySelector('#filter').focus()")
    page.type("noi")
    page.wait_for("document.querySelectorAll('#filter-list [role=option]').length === 1")
    page.press("Enter")
    page.wait_for("document.querySelectorAll('#list-a .title').length === 2")
    assert page.texts("#filters button") == ["genre: noir ×"]
    assert all("genre: " in text and "noir" in text for text in page.texts("#list-a .more"))
    assert page.text("#status").startswith("2 items for u1, ")
    page.run("document.querySelector('#k').value = '1'")
    page.run("document.querySelector('#k').dispatchEvent(new Event('change'))")
    page.wait_for("document.querySelector('#status').innerText.startsWith('1 item for u1, ')")
    page.run("document.querySelector('#k').value = '4'")
    assert "only_genre=noir" in page.run("location.hash")
    page.run("document.querySelector('#filters button').click()")
    page.wait_for(f"document.querySelectorAll('#list-a .title').length === {len(before)}")


def test_hiding_one_item_after_the_other_keeps_the_focus_in_its_place(page, server):
    open_user(page, server)
    before = shown(page)
    page.run("document.querySelectorAll('#list-a button[aria-label^=Hide]')[1].focus()")
    page.press("Enter")
    page.wait_for(f"document.querySelectorAll('#list-a .title').length === {len(before) - 1}")
    here = "document.activeElement.getAttribute('aria-label')"
    page.wait_for(f"{here} === 'Hide {before[2]}'")
    page.run("document.querySelector('#hidden-items button').focus()")
    page.press("Enter")
    page.wait_for("document.querySelector('#hidden-items').hidden")
    page.wait_for("document.activeElement.id === 'status'")


def test_similar_items_open_below_and_take_the_focus(page, server):
    open_user(page, server)
    shown(page)
    page.run("document.querySelector('#history button').click()")
    page.wait_for("!document.querySelector('#similar').hidden")
    assert page.text("#similar-title") == "Similar to Red Sea"
    assert page.focused() == "similar-title"
    assert page.texts("#similar-list .title")[0] == "Blue Sea"


def test_two_versions_stand_side_by_side(page, server):
    open_user(page, server)
    shown(page)
    page.run("document.querySelector('#version-b').value = '1'")
    page.run("document.querySelector('#version-b').dispatchEvent(new Event('change'))")
    page.wait_for("!document.querySelector('#section-b').hidden")
    assert page.text("#title-a") == "Recommended by version 2"
    assert page.text("#title-b") == "Recommended by version 1"
    assert page.texts("#list-b .title") == page.texts("#list-a .title")[::-1]
    assert "4 in both" in page.text("#status")
    lefts = page.run(
        "['title-a', 'title-b'].map(id => document.getElementById(id).getBoundingClientRect().left)"
    )
    assert lefts[0] < lefts[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_down_and_never_sideways(page, server, scheme):
    page.size(390, 844, scheme)
    open_user(page, server)
    shown(page)
    assert page.run("document.documentElement.scrollWidth") <= 390
    fields = "[...document.querySelectorAll('button, input, select')]"
    sizes = page.run(f"{fields}.filter(e => e.offsetParent).map(e => e.offsetHeight)")
    assert min(sizes) >= 40  # Large enough for a finger.
    assert _contrast(page) >= 4.5


def _contrast(page):
    """Returns the contrast of the softest text, by WCAG 2.2."""
    colours = page.run(
        "[getComputedStyle(document.body).backgroundColor,"
        " getComputedStyle(document.querySelector('#status')).color]"
    )
    light = []
    for colour in colours:
        channels = [float(part) / 255 for part in colour[4:-1].split(",")]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        light.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_every_field_has_a_label_and_news_are_reported(page):
    unlabelled = (
        "[...document.querySelectorAll('input, select')].filter(e => !e.labels.length).length"
    )
    assert page.run(unlabelled) == 0
    assert page.run("document.querySelector('#status').getAttribute('aria-live')") == "polite"


@pytest.mark.parametrize("number", ["99", "0", "2.5", ""])
def test_a_number_of_items_that_no_model_answers_with_is_refused_on_the_page(page, server, number):
    open_user(page, server)
    shown(page)
    page.run(f"document.querySelector('#k').value = '{number}'")
    page.run("document.querySelector('#k').dispatchEvent(new Event('change'))")
    page.wait_for("document.querySelector('#status').innerText.startsWith('The number')")
    most = page.run("document.querySelector('#k').max")
    assert f"1 to {most}" in page.text("#status")


def test_what_the_server_refuses_is_reported(page):
    page.run("document.querySelector('#k').max = '99'")
    page.run("document.querySelector('#k').value = '99'")
    page.run("document.querySelector('#user').focus()")
    page.type("u1")
    page.press("Enter")
    page.wait_for("document.querySelector('#status').innerText.includes('[R541]')")
    page.said.clear()  # Chromium notes the 400.


@pytest.fixture
def empty(browser):
    """A server without a version, and a page of it."""
    with Running(versions=(), kind=FakeRecommender) as running:
        running.pool.loading = 7
        browser.open("about:blank")
        browser.said.clear()
        browser.open(f"{running.url}/#user=u1")
        yield running, browser


def test_while_a_version_is_loading_the_page_says_so_and_then_goes_on_by_itself(empty):
    server, page = empty
    page.wait_for("document.querySelector('#status').innerText.includes('is being loaded')")
    assert page.text("#status").startswith("Version 7 of m is being loaded. This page reloads")
    assert page.text("#name") == "m"
    assert page.run("document.querySelector('#wish').inert")
    server.pool.models = (FakeRecommender(7),)
    page.wait_for("document.querySelector('#status').innerText.includes('items for u1')")
    assert not page.run("document.querySelector('#wish').inert")
    assert page.said == []


def test_candidates_are_ranked_and_chosen_on_the_page(browser, tmp_path):
    pytest.importorskip("tensorflow", reason="needs the extra `serve`")
    from ranking_bundle import write_ranking_bundle

    bundle = write_ranking_bundle(tmp_path / "1")
    with Running(versions=(1,), kind=lambda _: open_bundle(bundle)) as running:
        browser.said.clear()
        browser.open("about:blank")
        browser.open(f"{running.url}/#user=u1&context+device=tv")
        assert shown(browser) == ["Two", "One", "i4", "i3"]
        assert browser.text("#score-a") == "click"
        assert "buy 0." in browser.texts("#list-a .more")[0]
        assert browser.text("#status").endswith("Context missing: price.")
        browser.run("document.querySelector('#candidate').focus()")
        browser.type("new")
        browser.press("Enter")
        browser.wait_for("document.querySelectorAll('#list-a .title').length === 1")
        assert browser.texts("#candidates button") == ["new ×"]
        assert browser.run("location.hash.includes('rank=new')")
        assert browser.said == []
