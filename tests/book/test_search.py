"""The search finds what readers type."""

import pytest

import pages

pytestmark = pytest.mark.book

WORDS = {
    "softmax": "attention",
    "multi-head": "attention",
    "causal mask": "attention",
    "einsum": "attention",
    "padding": "attention",
    "dropout": "encoder",
    "layer norm": "encoder",
    "residual": "encoder",
    "positions": "encoder",
    "gelu": "encoder",
    "warm-up": "warmup",
    "learning rate": "warmup",
    "adam": "warmup",
    "clipping": "warmup",
    "schedule": "warmup",
    "checkpoint": "reverse",
    "antidiagonal": "reverse",
    "recurrent": "reverse",
    "one-hot": "reverse",
    "equivariant": "anomaly",
    "baseline": "anomaly",
    "CIFAR": "anomaly",
    "digits": "anomaly",
    "Optax": "comparison",
}


@pytest.fixture(scope="module")
def results(browser, address):
    """Addresses and titles that a search shows, to a reader who has chosen."""
    context = browser.new_context()
    page = context.new_page()

    def search(words, side="jax"):
        page.goto(f"{address}/search.html")
        page.evaluate(
            f"localStorage.setItem('sphinx-design-tab-id-framework', '{side}')"
        )
        page.goto(f"{address}/search.html?q={words}")
        page.wait_for_function(
            """() => /finished|found|not match/i.test(
                document.querySelector('.search-summary')?.textContent)"""
        )
        links = page.locator("#search-results .search li > a").all()
        return [(link.get_attribute("href"), link.inner_text()) for link in links]

    yield search
    context.close()


@pytest.mark.parametrize(("word", "chapter"), WORDS.items())
def test_the_search_finds(results, word, chapter):
    """The chapter where the word belongs is among the first six results."""
    found = results(word)
    assert any(chapter in address for address, _ in found[:6]), f"{word}: {found[:6]}"
    assert len({*found}) == len(found), f"{word}: {found}"


@pytest.mark.parametrize("side", pages.SIDES)
def test_a_chapter_in_the_readers_framework_comes_before_its_twin(results, side):
    found = [address for address, _ in results("gradient", side)]
    other = next(name for name in pages.SIDES if name != side)
    own = [address for address in found if f"_{side}.html" in address]
    assert len(own) >= 4, found
    for address in own:
        twin = address.replace(f"_{side}.html", f"_{other}.html")
        assert found.index(address) < found.index(twin), found


def test_what_nobody_wrote_is_not_found(results):
    assert results("xylophone") == []
