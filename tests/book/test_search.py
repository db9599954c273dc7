"""The search finds what readers type."""

import pytest

pytestmark = pytest.mark.book
WORDS = {
    "pytree": "frameworks", "causal mask": "attention", "layer norm": "encoder",
    "rotary": "positions", "equivariant": "anomaly", "beam search": "translation",
    "SwiGLU": "today", "LoRA": "finetune", "top-p": "decoder", "clipping": "warmup",
    "utilisation": "costs", "dictionary": "comparison",
}  # fmt: skip


def results(page, words):
    """Addresses that a search shows, in order."""
    page.open(f"search.html?q={words}")
    page.wait_for_function(
        """() => /finished|found|not match/i.test(
            document.querySelector('.search-summary')?.textContent)"""
    )
    return page.locator("#search-results .search li > a").evaluate_all(
        "links => links.map(link => link.getAttribute('href'))"
    )


def test_search_finds_the_chapter(visit):
    """Among the first ten results, and none for a word that nobody wrote."""
    page = visit("search.html")
    for word, chapter in WORDS.items():
        found = results(page, word)[:10]
        assert any(chapter in place for place in found), f"{word}: {found}"
    assert results(page, "xylophone") == []
    assert not page.complaints
