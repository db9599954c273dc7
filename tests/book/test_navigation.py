"""One step between the twins, and the way on in the reader's own framework."""

import re

import pytest
import serve
from playwright.sync_api import expect

import navigation
import pages
from browsing import NARROW, WIDE
from reading import article, whole

pytestmark = pytest.mark.book
CHAPTERS = [
    page.removeprefix("notebooks/").removesuffix("_jax")
    for page in pages.toc()
    if page.endswith("_jax")
]
LAST = CHAPTERS[-1]
JAX = "a[data-choose=jax], button[data-choose=jax]"
TORCH = "a[data-choose=torch], button[data-choose=torch]"
MIDDLE = """() => {
    const sections = document.querySelectorAll('article section[id] section[id]');
    const section = sections[Math.min(2, sections.length - 2)];
    const parts = [...section.children];
    const part = parts[Math.floor(parts.length / 2)];
    const header = document.querySelector('.bd-header-article');
    const bottom = header.getBoundingClientRect().bottom;
    window.scrollTo({top: scrollY + part.getBoundingClientRect().top - bottom - 8,
        behavior: 'instant'});
    return [section.id, Math.floor(parts.length / 2)];
}"""
PLACE = """([id, index]) => {
    const header = document.querySelector('.bd-header-article');
    const bottom = header.getBoundingClientRect().bottom;
    const part = document.getElementById(id).children[index];
    return part.getBoundingClientRect().top - bottom;
}"""


def shown(page, selector):
    """Addresses of the links that a reader sees, without their folders."""
    links = page.locator(selector).filter(visible=True)
    return [re.sub(r".*/", "", a.get_attribute("href")) for a in links.all()]


@pytest.mark.parametrize(
    ("chapter", "size"),
    [(CHAPTERS[0], WIDE), (CHAPTERS[len(CHAPTERS) // 2], NARROW), (LAST, WIDE)],
)
def test_switch_keeps_the_place(new_reader, chapter, size):
    """The same part of the same section stands below the header, and back again."""
    page = new_reader(viewport=size)
    page.open(f"notebooks/{chapter}_jax.html")
    page.evaluate("window.MathJax?.startup?.promise")
    place = page.evaluate(MIDDLE)
    page.locator(TORCH).click()
    page.wait_for_url(f"**/{chapter}_torch.html#{place[0]}")
    page.evaluate("window.MathJax?.startup?.promise")
    page.wait_for_function(f"Math.abs(({PLACE})({place})) < 60")
    page.locator("a[data-choose=jax]").click()
    page.wait_for_url(f"**/{chapter}_jax.html#{place[0]}")
    page.evaluate("window.MathJax?.startup?.promise")
    page.wait_for_function(f"Math.abs(({PLACE})({place})) < 60")
    assert not page.complaints


def test_switch_leads_from_the_top_to_the_top(new_reader):
    page = new_reader()
    page.open("notebooks/encoder_torch.html")
    page.locator("a[data-choose=jax]").click()
    page.wait_for_url("**/encoder_jax.html")
    assert page.evaluate("scrollY") == 0


def test_deep_link_leads_to_the_same_section_of_the_twin(new_reader):
    """Before anything was clicked, and from a section with a long name."""
    page = new_reader()
    section = "layer-norm-keeps-every-position-on-one-scale"
    page.open(f"notebooks/encoder_torch.html#{section}")
    page.evaluate("window.MathJax?.startup?.promise")
    page.locator("a[data-choose=jax]").click()
    page.wait_for_url(f"**/encoder_jax.html#{section}")


@pytest.mark.parametrize("start", ["notebooks/warmup_jax.html", "book/index.html"])
def test_choice_is_remembered(new_reader, start):
    """Side bar, map, next and previous follow it, also after a reload."""
    page = new_reader()
    page.open(start)
    page.locator(TORCH).click()
    page.open("book/index.html")
    for _ in range(2):
        assert page.locator("html").get_attribute("data-framework") == "torch"
        listed = shown(page, ".bd-links a[href*=notebooks]")
        assert listed == [f"{chapter}_torch.html" for chapter in CHAPTERS]
        expect(page.locator("button[data-choose=torch]")).to_have_attribute(
            "aria-pressed", "true"
        )
        page.reload()
    page.open("book/index.html")
    assert shown(page, "a.right-next") == [f"{CHAPTERS[0]}_torch.html"]
    page.open("book/playground.html")
    assert shown(page, "a.left-prev") == [f"{LAST}_torch.html"]
    page.open("book/comparison.html")
    assert page.locator(".sd-tab-content").filter(visible=True).first.inner_text()
    chosen = page.locator("label[data-sync-id=torch]").all()
    assert chosen and all(
        page.locator(f"#{label.get_attribute('for')}").is_checked() for label in chosen
    )


def test_tab_of_the_comparison_sets_the_choice(new_reader):
    page = new_reader()
    page.open("book/comparison.html")
    page.locator("label[data-sync-id=torch]").nth(2).click()
    expect(page.locator("html")).to_have_attribute("data-framework", "torch")
    page.open("book/index.html")
    expect(page.locator("html")).to_have_attribute("data-framework", "torch")


def test_index_marks_the_chosen_framework(new_reader):
    page = new_reader()
    page.open("book/index.html")
    colours = "link => getComputedStyle(link).backgroundColor"
    links = {
        side: page.locator(f"article table a[href$='{CHAPTERS[0]}_{side}.html']")
        for side in pages.SIDES
    }
    before = {side: link.evaluate(colours) for side, link in links.items()}
    page.locator(JAX).click()
    after = {side: link.evaluate(colours) for side, link in links.items()}
    assert before["torch"] == after["jax"] != before["jax"] == after["torch"]


def test_a_new_reader_gets_pytorch(new_reader):
    """As the index advises who knows neither: switch, links, and tabs."""
    page = new_reader()
    page.open("book/index.html")
    expect(page.locator(TORCH)).to_have_attribute("aria-pressed", "true")
    assert shown(page, "a.right-next") == [f"{CHAPTERS[0]}_torch.html"]
    page.open("book/comparison.html")
    expect(page.locator("html")).to_have_attribute("data-framework", "torch")
    for label in page.locator("label[data-sync-id=torch]").all():
        expect(page.locator(f"#{label.get_attribute('for')}")).to_be_checked()


def test_link_from_outside_keeps_the_choice(new_reader):
    """Its page speaks for itself; the reader's own choice holds elsewhere."""
    page = new_reader()
    page.open("book/index.html")
    page.locator(TORCH).click()
    page.open("notebooks/encoder_jax.html")
    assert shown(page, "a.right-next") == ["positions_jax.html"]
    page.open("book/index.html")
    expect(page.locator("html")).to_have_attribute("data-framework", "torch")


def test_first_chapter_ever_opened_sets_the_choice(new_reader):
    page = new_reader()
    page.open("notebooks/reverse_torch.html#key-points")
    page.open("book/index.html")
    expect(page.locator("html")).to_have_attribute("data-framework", "torch")


def test_every_section_links_its_twin_without_scripts(new_reader):
    """And both frameworks stand in the side bar, because nothing can be chosen."""
    page = new_reader(java_script_enabled=False)
    page.open("notebooks/attention_jax.html")
    assert shown(page, "nav.framework-switch a[data-choose=torch]")
    headings = page.locator("article h2").count()
    links = page.locator("article h2 a.twin-link").filter(visible=True)
    assert links.count() == headings > 5
    section = page.locator("article section section").nth(3).get_attribute("id")
    links.nth(3).click()
    page.wait_for_url(f"**/attention_torch.html#{section}")
    listed = shown(
        page, ".bd-links a[href$='_jax.html'], .bd-links a[href$='_torch.html']"
    )
    assert len(listed) == 2 * len(CHAPTERS) - 1  # and the page itself


def test_links_work_where_storage_is_forbidden(new_reader):
    """Storage that throws is a setting of some browsers."""
    page = new_reader()
    page.add_init_script(
        "for (const name of ['localStorage', 'sessionStorage'])"
        " Object.defineProperty(window, name, {get() { throw new Error('no'); }});"
    )
    page.open("notebooks/warmup_jax.html")
    page.evaluate(MIDDLE)
    page.locator(TORCH).click()
    page.wait_for_url("**/warmup_torch.html#*")
    ours = [text for text in page.complaints if "navigation.js" in text]
    assert not ours


@pytest.fixture(scope="module")
def extras(html):
    """``(page, ids of its extras)`` of the chapter on the decoder."""
    page = "notebooks/decoder_torch"
    return f"{page}.html", [node["id"] for node in whole(page).select("section.extra")]


def test_an_extra_is_one_line_until_it_is_wanted(new_reader, extras):
    """By its line, by a link to it, and by the browser's search in the page."""
    name, (first, *more) = extras
    page = new_reader()
    page.open(name)
    body = page.locator(f"#{first} .extra-body")
    assert body.bounding_box()["height"] == 0
    button = page.locator(f"#{first} .extra-line button")
    assert re.fullmatch(
        r"Show this extra, about (\d+ minutes|a minute)", button.inner_text()
    )
    expect(button).to_have_attribute("aria-expanded", "false")
    button.focus()
    page.keyboard.press("Enter")
    assert body.bounding_box()["height"] > 200
    expect(button).to_have_text("Fold this extra")
    button.click()
    assert body.bounding_box()["height"] == 0
    page.evaluate(f"location.hash = '{first}'")
    expect(button).to_have_attribute("aria-expanded", "true")
    page.open(f"{name}#{more[-1]}")
    page.reload()
    assert page.locator(f"#{more[-1]} .extra-body").bounding_box()["height"] > 100
    assert page.locator(f"#{first} .extra-body").bounding_box()["height"] == 0
    body.dispatch_event("beforematch")
    expect(button).to_have_attribute("aria-expanded", "true")
    assert page.complaints == []


def test_all_extras_can_be_shown_and_that_is_remembered(new_reader, extras):
    name, ids = extras
    page = new_reader()
    page.open(name)
    page.get_by_role("button", name=f"Show all {len(ids)} extras").click()
    for _ in range(2):
        for each in ids:
            assert page.locator(f"#{each} .extra-body").bounding_box()["height"] > 100
        page.reload()
    page.get_by_role("button", name=f"Fold all {len(ids)} extras").click()
    page.open(name.replace("decoder", "translation"))
    assert page.locator(".extra-body").first.bounding_box()["height"] == 0


def test_extras_are_open_without_scripts_and_on_paper(new_reader, extras):
    name, ids = extras
    page = new_reader(java_script_enabled=False)
    page.open(name)
    assert page.locator(f"#{ids[0]} .extra-body").bounding_box()["height"] > 100
    page = new_reader()
    page.open(name)
    page.emulate_media(media="print")
    assert page.locator(f"#{ids[0]} .extra-body").bounding_box()["height"] > 100


def test_a_chapter_says_how_long_it_takes(html):
    """Between ten and 25 minutes, and as long at most for its extras; the questions."""
    for page in pages.toc():
        if not pages.side_of(page):
            continue
        said = whole(page).select_one(".take-along .minutes").text
        core, extras, questions = map(int, re.findall(r"\d+", said))
        assert 10 <= core <= 25 and extras <= core, f"{page}: {said}"
        assert 2 <= questions <= 4, f"{page}: {said}"
        assert article(page).select("section.extra")


def rows_of(heading):
    """Of the table below a heading of the index: cells of each row."""
    section = article("book/index").find(id=heading)
    return [row.find_all("td") for row in section.table.tbody.find_all("tr")]


def test_the_index_says_how_long_chapters_take(html):
    """As their pages do: between the minutes of both frameworks."""
    for _, *links, minutes, _ in rows_of("the-chapters"):
        names = [c.a["href"].removeprefix("../").removesuffix(".html") for c in links]
        lines = [whole(name).select_one(".minutes").text for name in names]
        said = [int(re.search(r"\d+", line)[0]) for line in lines]
        assert min(said) - 1 <= int(minutes.text) <= max(said) + 1, names


def test_the_path_of_one_hour_takes_one(html):
    """Its steps add up to an hour, and lead to the same section in both frameworks."""
    *steps, (_, _, _, total) = rows_of("ways-through-the-book")
    assert 50 <= int(total.text) <= 65
    parts = [int(step[-1].text) for step in steps]
    assert abs(sum(parts) - int(total.text)) <= len(parts) / 2
    for _, *links, _ in steps:
        places = [cell.a["href"].removeprefix("../").split("#") for cell in links]
        assert places[0][1] == places[1][1]
        for page, anchor in places:
            assert article(page.removesuffix(".html")).find(id=anchor).name == "section"


def test_buttons_stand_on_a_chapter_before_scripts_run(html):
    """Else they would move what is below them."""
    for page in filter(pages.side_of, pages.toc()):
        found = [b.get_text() for b in article(page).select(".take-along button")]
        checks = len(article(page).select(".tag_check details"))
        extras = len(article(page).select("section.extra"))
        assert found[0].split()[-2:] in ([f"{checks}", "checks"], ["the", "check"])
        assert found[1].split()[-2:] in ([f"{extras}", "extras"], ["the", "extra"])


def test_switch_works_by_keyboard(new_reader):
    """Reached by Tab, followed by Enter; buttons are pressed with the space bar."""
    page = new_reader()
    page.open("notebooks/warmup_jax.html")
    for _ in range(80):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.choose") == "torch":
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/warmup_torch.html")
    page.open("book/notation.html")
    page.locator("button[data-choose=jax]").focus()
    page.keyboard.press("Space")
    expect(page.locator("html")).to_have_attribute("data-framework", "jax")


ORDER = ["start", "notebooks/a_jax", "notebooks/a_torch", "notebooks/b_jax"]
ORDER += ["notebooks/b_torch", "end"]


@pytest.mark.parametrize(
    ("page", "step", "expected"),
    [
        ("start", -1, []),
        ("start", 1, ["notebooks/a_jax", "notebooks/a_torch"]),
        ("notebooks/a_jax", -1, ["start"]),
        ("notebooks/a_torch", -1, ["start"]),
        ("notebooks/a_jax", 1, ["notebooks/b_jax"]),
        ("notebooks/a_torch", 1, ["notebooks/b_torch"]),
        ("notebooks/b_torch", 1, ["end"]),
        ("end", -1, ["notebooks/b_jax", "notebooks/b_torch"]),
        ("end", 1, []),
    ],
)
def test_neighbours(page, step, expected):
    assert navigation.neighbours(page, step, ORDER) == expected


def test_missing_page_is_answered_in_the_style_of_the_book(new_reader):
    """At any depth, also below the folder of the public home, with ways back."""
    page = new_reader()
    home = serve.HOME.strip("/")
    for address in ("notebooks/no/such/page.html", f"{home}/nowhere/page.html"):
        assert page.open(address).status == 404
        assert page.locator("article h1").inner_text().startswith("There is no such")
        style = "getComputedStyle(document.querySelector('.framework-switch')).display"
        assert page.evaluate(style) == "flex"  # by the book's own style sheet
        page.locator("article a", has_text="glossary").click()
        page.wait_for_url(f"**/{home}/book/glossary.html")
