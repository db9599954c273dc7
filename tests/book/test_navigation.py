"""One step between the twins, and the way on in the reader's own framework."""

import re

import pytest
from browsing import CHAPTERS, NARROW, WIDE, article, list_all
from docutils import nodes
from docutils.core import publish_doctree
from playwright.sync_api import expect

import navigation
import pages

pytestmark = pytest.mark.book
FIRST, LAST = CHAPTERS[0], CHAPTERS[-1]
TORCH = "a[data-choose=torch], button[data-choose=torch]"
SECTION = """id => {
    const section = document.getElementById(id);
    section.scrollIntoView({behavior: 'instant'});
    scrollBy({top: 40, behavior: 'instant'});
}"""
ORDER = ["start", "notebooks/a_jax", "notebooks/a_torch", "notebooks/b_jax"]
ORDER += ["notebooks/b_torch", "end"]


def shown(page, selector):
    """Addresses of the links that a reader sees, without their folders."""
    links = page.locator(selector).filter(visible=True)
    return [re.sub(r".*/", "", a.get_attribute("href")) for a in links.all()]


def test_neighbours_stay_in_one_framework():
    """A page beside the chapters has one of each side."""
    found = [
        [navigation.neighbours(page, step, ORDER) for step in (-1, 1)] for page in ORDER
    ]
    a, b = ([f"notebooks/{name}_{side}" for side in pages.SIDES] for name in "ab")
    assert found == [
        [[], a], [["start"], b[:1]], [["start"], b[1:]],
        [a[:1], ["end"]], [a[1:], ["end"]], [b, []],
    ]  # fmt: skip


def test_switch_leads_to_the_same_section(visit):
    """From the middle of a page, from its top, and where a link has led to."""
    page = visit("notebooks/encoder_jax.html")
    section = article("notebooks/encoder_jax").select("section section")[3]["id"]
    page.evaluate(SECTION, section)
    page.locator(TORCH).click()
    page.wait_for_url(f"**/encoder_torch.html#{section}")
    page.open("notebooks/encoder_torch.html")
    page.locator("a[data-choose=jax]").click()
    page.wait_for_url("**/encoder_jax.html")
    page.open(f"notebooks/encoder_jax.html#{section}")
    page.evaluate("window.MathJax?.startup?.promise")
    page.locator(TORCH).focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/encoder_torch.html#{section}")
    assert not page.complaints


def test_choice_is_kept_and_followed_by_all_pages(visit):
    """Side bar, next and previous, tabs and the table of the index follow it."""
    page = visit("book/index.html")
    assert shown(page, "a.right-next") == [f"{FIRST}_torch.html"]  # of a new reader
    page.locator("button[data-choose=jax]").focus()
    page.keyboard.press("Space")
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-framework", "jax")
    expect(page.locator("button[data-choose=jax]")).to_have_attribute(
        "aria-pressed", "true"
    )
    listed = shown(page, ".bd-links a[href*=notebooks]")
    assert listed == [f"{chapter}_jax.html" for chapter in CHAPTERS]
    page.open("book/playground.html")
    assert shown(page, "a.left-prev") == [f"{LAST}_jax.html"]
    page.open(f"notebooks/{LAST}_torch.html")  # a link from outside: no choice
    page.open("book/comparison.html")
    expect(page.locator("html")).to_have_attribute("data-framework", "jax")
    page.locator("label[data-sync-id=torch]").nth(2).click()
    page.open("book/index.html")
    expect(page.locator("html")).to_have_attribute("data-framework", "torch")


def test_links_to_twins_work_without_scripts(visit):
    page = visit("notebooks/attention_jax.html", java_script_enabled=False)
    assert shown(page, "nav.framework-switch a[data-choose=torch]")
    links = page.locator("article h2 a.twin-link").filter(visible=True)
    assert links.count() == page.locator("article h2").count() > 5
    links.nth(3).click()
    page.wait_for_url("**/attention_torch.html#*")
    listed = shown(page, ".bd-links a[href$='_jax.html']")
    assert len(listed) == len(CHAPTERS)  # because nothing can be chosen
    assert page.locator(".extra-body").first.bounding_box()["height"] > 100


def test_an_extra_is_one_line_until_it_is_wanted(visit):
    """By its line, by a link to it, by the browser's search, or all at once."""
    name = "notebooks/decoder_torch"
    first, *_, last = [node["id"] for node in article(name).select("section.extra")]
    page = visit(f"{name}.html")
    body = page.locator(f"#{first} .extra-body")
    button = page.locator(f"#{first} .extra-line button")
    assert body.bounding_box()["height"] == 0
    button.focus()
    page.keyboard.press("Enter")
    assert body.bounding_box()["height"] > 200
    button.click()
    page.evaluate(f"location.hash = '{last}'")
    expect(page.locator(f"#{last} button").first).to_have_text("Fold this extra")
    body.dispatch_event("beforematch")
    expect(button).to_have_attribute("aria-expanded", "true")
    button.click()
    page.get_by_text("Folds and files").click()
    page.get_by_role("button", name="Show all extras").click()
    page.locator("button.unfold-checks").click()
    page.open("notebooks/decoder_jax.html")  # and that is kept, as for checks
    checks = page.locator(".tag_check details")
    assert all(checks.evaluate_all("all => all.map(node => node.open)"))
    for body in page.locator(".extra-body").all():
        assert body.bounding_box()["height"] > 0
    assert page.complaints == []


def test_the_first_section_begins_on_the_first_screen(visit):
    """Its heading; on a phone on the second screen."""
    page, faults = visit("book/glossary.html"), []
    for name in (f"{chapter}_torch" for chapter in CHAPTERS):
        page.open(f"notebooks/{name}.html")
        for size, screens in ({"width": 1280, "height": 800}, 1), (NARROW, 2):
            page.set_viewport_size(size)
            box = page.locator("article h2").first.bounding_box()
            if (end := box["y"] + box["height"]) > screens * size["height"]:
                faults.append(f"{name}: at {end:.0f} with {size}")
    page.set_viewport_size(WIDE)  # the window is kept
    list_all(faults)


def test_minutes_count_exercises_and_leave_extras_apart():
    text = f"{'=' * 20}\n\n**Exercise 1.** {'word ' * 340}\n"  # two minutes, and four
    titles = "Chapter", "Extra: Your turn", "Extra: Other", "Five questions"
    page = publish_doctree("\n".join(f"{title}\n{text}" for title in titles))
    code = nodes.literal_block(text="def mine(x): ...")
    page[1] += nodes.container("", code, classes=["cell", "tag_your-turn"])
    assert [*navigation.times(page)] == pytest.approx([2, 3 * 6 + 6, 6], abs=0.2)


def test_five_questions_keep_the_first_choice(visit):
    """For both frameworks together, until they start again; also by keyboard."""
    page = visit(f"notebooks/{FIRST}_jax.html")
    answers, score = "#five-questions details", page.locator(".score [role=status]")
    right = page.locator(f"{answers}.right > summary")
    right.nth(0).focus()
    page.keyboard.press("Enter")
    expect(score).to_have_text("1 of 1 right at the first choice")
    page.locator(f"{answers}.wrong > summary").nth(0).click()  # of the same question
    expect(score).to_have_text("1 of 1 right at the first choice")
    page.open(f"notebooks/{FIRST}_torch.html")
    expect(score).to_have_text("1 of 1 right at the first choice")
    page.get_by_role("button", name="Start again").click()
    expect(score).to_have_count(0)
    expect(page.locator(f"{answers}[open]")).to_have_count(0)
    page = visit(f"notebooks/{FIRST}_jax.html", java_script_enabled=False)
    right = page.locator(answers).first
    right.locator("summary").click()
    expect(right.locator("p")).to_be_visible()


def test_missing_page_is_answered_in_the_style_of_the_book(visit):
    """At any depth, with ways back."""
    page = visit("book/notation.html")
    for address in ("notebooks/no/such/page.html", "nowhere.html"):
        page.open(address)
        expect(page.locator("article h1")).to_contain_text("There is no such page")
        expect(page.locator(".framework-switch")).to_have_css("display", "flex")
        page.locator("article a", has_text="glossary").click()
        page.wait_for_url("**/book/glossary.html")
