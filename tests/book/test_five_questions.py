"""Five questions: answers unfold, the first choice counts, and the score is kept."""

import pytest
from playwright.sync_api import expect

import pages

pytestmark = pytest.mark.book
CHAPTER = pages.chapters()[0]
SECTION = "#five-questions"


def answers(page, verdict):
    return page.locator(f"{SECTION} details.{verdict} > summary")


def test_answers_unfold_without_scripts(new_reader):
    page = new_reader(java_script_enabled=False)
    page.open(f"notebooks/{CHAPTER}_jax.html")
    first = page.locator(f"{SECTION} details").first
    expect(first.locator("p")).not_to_be_visible()
    first.locator("summary").click()
    expect(first.locator("p")).to_be_visible()


def test_the_first_choice_counts(new_reader):
    page = new_reader()
    page.open(f"notebooks/{CHAPTER}_jax.html")
    score = page.locator(".score [role=status]")
    expect(score).to_have_count(0)
    answers(page, "right").nth(0).click()
    expect(score).to_have_text("1 of 1 right at the first choice")
    answers(page, "wrong").nth(0).click()  # of the same question
    expect(score).to_have_text("1 of 1 right at the first choice")
    last = page.locator(f"{SECTION} details").last
    question = last.locator("xpath=preceding-sibling::p[1]")
    wrong = question.locator("xpath=following-sibling::details[@class='wrong'][1]")
    wrong.locator("summary").click()
    expect(score).to_have_text("1 of 2 right at the first choice")


def test_the_score_is_kept_and_belongs_to_both_frameworks(new_reader):
    page = new_reader()
    page.open(f"notebooks/{CHAPTER}_jax.html")
    answers(page, "right").nth(2).click()
    page.reload()
    score = page.locator(".score [role=status]")
    expect(score).to_have_text("1 of 1 right at the first choice")
    expect(page.locator(f"{SECTION} details[open]")).to_have_count(1)
    page.open(f"notebooks/{CHAPTER}_torch.html")
    expect(score).to_have_text("1 of 1 right at the first choice")
    page.get_by_role("button", name="Start again").click()
    expect(score).to_have_count(0)
    expect(page.locator(f"{SECTION} details[open]")).to_have_count(0)
    page.reload()
    expect(score).to_have_count(0)


def test_all_can_be_answered_by_keyboard(new_reader):
    """Tab leads from answer to answer, at times by a formula in a reason."""
    page = new_reader()
    page.open(f"notebooks/{CHAPTER}_torch.html")
    summaries = page.locator(f"{SECTION} summary")
    summaries.first.focus()
    for summary in summaries.all():
        for _ in range(9):
            if summary.evaluate("one => one === document.activeElement"):
                break
            page.keyboard.press("Tab")
        expect(summary).to_be_focused()
        page.keyboard.press("Enter")
    expect(page.locator(".score [role=status]")).to_contain_text("of 5 right")


def test_a_broken_store_is_forgotten(new_reader):
    page = new_reader()
    page.open(f"notebooks/{CHAPTER}_jax.html")
    for kept in ("no JSON", "null", "7"):
        page.evaluate(f"localStorage.setItem('questions-{CHAPTER}', {kept!r})")
        page.reload()
        answers(page, "right").nth(0).click()
        expect(page.locator(".score")).to_contain_text("1 of 1 right")
        page.get_by_role("button", name="Start again").click()
