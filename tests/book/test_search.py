"""The search finds what readers type."""

import pytest

import pages
from browsing import new_context

pytestmark = pytest.mark.book
WORDS = {
    "pytree": "frameworks",
    "state dict": "frameworks",
    "tracing": "frameworks",
    "softmax": "attention",
    "multi-head": "attention",
    "causal mask": "attention",
    "layer norm": "encoder",
    "rotary": "positions",
    "overfitted": "frameworks",
    "beam search": "translation",
    "SwiGLU": "today",
    "LoRA": "finetune",
    "SMILES": "masked",
    "top-p": "decoder",
    "learning rate": "warmup",
    "clipping": "warmup",
    "checkpoint": "reverse",
    "recurrent": "reverse",
    "equivariant": "anomaly",
    "CIFAR": "anomaly",
    "utilisation": "costs",
    "Optax": "frameworks",
    "dictionary": "comparison",
}


@pytest.fixture(scope="module")
def results(browser, address):
    """Addresses and titles that a search shows to a reader of one framework."""
    context = new_context(browser)
    page = context.new_page()
    page.goto(f"{address}/search.html")

    def search(words, side="jax"):
        page.evaluate(
            f"localStorage.setItem('sphinx-design-tab-id-framework', '{side}')"
        )
        page.goto(f"{address}/search.html?q={words}")
        page.wait_for_function(
            """() => /finished|found|not match/i.test(
                document.querySelector('.search-summary')?.textContent)"""
        )
        return page.locator("#search-results .search li > a").evaluate_all(
            "links => links.map(link => [link.getAttribute('href'), link.innerText])"
        )

    yield search
    context.close()


@pytest.mark.parametrize(("word", "chapter"), WORDS.items())
def test_search_finds_the_chapter(results, word, chapter):
    """Among the first six results, of which none is shown twice."""
    found = results(word)
    assert any(chapter in address for address, _ in found[:6]), f"{word}: {found[:6]}"
    assert len({*map(tuple, found)}) == len(found), f"{word}: {found}"


@pytest.mark.parametrize("side", pages.SIDES)
def test_own_framework_is_listed_before_its_twin(results, side):
    found = [address for address, _ in results("gradient", side)]
    other = next(name for name in pages.SIDES if name != side)
    own = [address for address in found if f"_{side}.html" in address]
    twins = {x: x.replace(f"_{side}.html", f"_{other}.html") for x in own}
    pairs = [(x, twin) for x, twin in twins.items() if twin in found]
    assert len(pairs) >= 4, found
    for address, twin in pairs:
        assert found.index(address) < found.index(twin), found


def test_word_that_nobody_wrote_is_not_found(results):
    assert results("xylophone") == []
