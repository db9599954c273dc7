"""Each page is one ``.py``, and the ``.ipynb`` beside it says exactly the same."""

import json
import shutil
import subprocess
import sys

import nbformat
import pytest

import pages
import sync

PAGES = pages.sources()


def difference(left, right):
    """The first line in which two texts differ, as a sentence."""
    old, new = left.splitlines(), right.splitlines()
    for number in range(max(len(old), len(new))):
        a, b = (lines[number] if number < len(lines) else "" for lines in (old, new))
        if a != b:
            return f"line {number + 1} of the cell:\n  {a!r}\n  {b!r}"
    return "the same lines"


def test_every_page_has_its_pair():
    """No ``.py`` without ``.ipynb``, none the other way round, and some of both."""
    notebooks = {path.stem for path in pages.NOTEBOOKS.glob("*.ipynb")}
    assert notebooks == {path.stem for path in PAGES}
    assert notebooks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pair_is_equal_cell_by_cell(page):
    """Kind, text and metadata of every cell."""
    written = pages.read_py(page)
    generated = pages.read_ipynb(page.with_suffix(".ipynb"))
    for left, right in zip(written, generated, strict=False):
        advice = f"{left}: differs from {right.page}; run `make sync`"
        assert left.kind == right.kind, advice
        assert left.source == right.source, (
            f"{advice}; {difference(left.source, right.source)}"
        )
        assert sync.folded(left.metadata, left.source) == right.metadata, advice
    assert len(written) == len(generated), (
        f"{page.name}: {len(written)} cells, its .ipynb: {len(generated)}; `make sync`"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_notebook_is_what_sync_writes(page):
    """So a further ``make sync`` changes nothing: no id, no byte."""
    present = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert present == sync.text(page), f"{page.stem}.ipynb is out of date: `make sync`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_notebook_has_ids_and_no_outputs(page):
    """Outputs belong to the reader's run and to the built book, not into git."""
    content = json.loads(page.with_suffix(".ipynb").read_text(encoding="utf-8"))
    ids = [cell.get("id") for cell in content["cells"]]
    assert all(ids) and len(set(ids)) == len(ids), (
        f"{page.stem}: ids missing or doubled"
    )
    for number, cell in enumerate(content["cells"], start=1):
        assert not cell.get("outputs"), f"{page.stem}, cell {number} has outputs"
        assert not cell.get("execution_count"), (
            f"{page.stem}, cell {number} was executed"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_cell_is_empty(page):
    for cell in pages.read_py(page):
        assert cell.source.strip(), f"{cell} is empty"


def test_ids_stay_when_cells_are_edited_inserted_and_moved(tmp_path):
    """An id belongs to its cell; a new cell gets a new one, the same everywhere."""
    page = tmp_path / "page.py"
    texts = [f"# %%\nx{i} = {i}\n" for i in range(5)]

    def ids(cells):
        page.write_text("\n".join(cells), encoding="utf-8")
        sync.main([str(page)])
        notebook = nbformat.read(page.with_suffix(".ipynb"), as_version=4)
        return [cell.id for cell in notebook.cells]

    before = ids(texts)
    assert len(set(before)) == 5
    edited = [*texts[:2], texts[2].replace("= 2", "= 20"), *texts[3:]]
    assert ids(edited) == before
    inserted = ids([*edited[:1], "# %%\nnew = True\n", *edited[1:]])
    assert inserted[:1] + inserted[2:] == before
    assert inserted[1] not in before
    page.with_suffix(".ipynb").unlink()
    assert ids(texts) == before, "the same text gives the same ids on every machine"


def test_plain_jupytext_agrees(tmp_path):
    """``jupytext --to ipynb --update`` without our tool: same cells, same ids."""
    for name in (PAGES[0].name, PAGES[0].with_suffix(".ipynb").name):
        shutil.copy(pages.NOTEBOOKS / name, tmp_path / name)
    copy = tmp_path / PAGES[0].name
    command = [sys.executable, "-m", "jupytext", "--quiet", "--to", "ipynb", "--update"]
    subprocess.run([*command, str(copy)], check=True)
    after = pages.read_ipynb(copy.with_suffix(".ipynb"))
    before = pages.read_ipynb(PAGES[0].with_suffix(".ipynb"))
    assert [(c.id, c.kind, c.source) for c in after] == [
        (c.id, c.kind, c.source) for c in before
    ]
