"""The text of pretraining: each document once, in a fixed order, nothing tested on."""

import json
import sys

import pytest

import pretraining_text
from helpers.data import lines, text

LONG = "What this does, and what it does not do, in more words than there are letters. "
MODULE = f'''"""{LONG * 3}Naïve."""


def f():
    """{LONG * 4}"""


class A:
    """{LONG * 4}"""

    def g(self):
        """Too short."""
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with docstrings, tests, and a licence; it alone is gathered."""
    folder, facts = tmp_path / "thing", tmp_path / "a_thing-1.5.dist-info"
    for place in (folder / "tests", facts):
        place.mkdir(parents=True)
    (folder / "__init__.py").write_text(MODULE, "utf-8")
    (folder / "later.py").write_text("def def", "utf-8")
    (folder / "tests/__init__.py").write_text(f"'''{LONG * 5}'''", "utf-8")
    about = "Metadata-Version: 2.4\nName: a-thing\nVersion: 1.5\nLicense: MIT\n"
    (facts / "METADATA").write_text(about, "utf-8")
    (facts / "top_level.txt").write_text("thing\n", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(pretraining_text, "DOCSTRINGS", ["thing"])
    monkeypatch.setattr(pretraining_text, "SOURCES", {})
    return folder


def test_each_docstring_is_there_once_in_the_order_of_digests(package):
    """Short ones and tests are not; nor is what is not ASCII."""
    found, (record,) = pretraining_text.gather()
    expected = [f"{LONG * 3}Nave.", (LONG * 4).strip()]
    expected.sort(key=pretraining_text.digest)
    assert found == "\n\n".join(expected) + "\n"
    assert record == {
        "source": "a-thing 1.5", "kind": "docstrings", "licence": "MIT",
        "documents": 2, "characters": sum(map(len, expected)),
    }  # fmt: skip


def test_files_that_pages_test_on_are_left_out(monkeypatch):
    """The rest of the standard library is there."""
    monkeypatch.setattr(pretraining_text, "DOCSTRINGS", [])
    monkeypatch.setattr(pretraining_text, "SOURCES", {None: ("*.py", sys.maxsize)})
    found, _ = pretraining_text.gather()
    for name in text.HELD_OUT:
        assert text.module(name)[500:900] not in found
    for name in ("argparse", "difflib"):
        assert text.module(name)[500:900] in found
    assert {path for name in lines.LANGUAGES for path in lines.files_of(name)} <= (
        pretraining_text.tested_on()
    )


def test_of_too_much_the_first_digests_are_taken():
    """So the same documents for the same files, whatever their order."""
    texts = [LONG * n for n in (3, 4, 5, 6, 7)]
    size = sum(map(len, texts))
    few = pretraining_text.documents(texts, size // 2)
    assert 0 < len(few) < 5 and [*few] == sorted(few)
    assert few == pretraining_text.documents(texts[::-1], size // 2)
    assert [*few] == [*pretraining_text.documents(texts)][: len(few)]


def test_the_command_writes_text_and_record(package, tmp_path, monkeypatch, capsys):
    """And says, before it writes, what is missing."""
    out = tmp_path / "new/text.txt"
    monkeypatch.setattr(sys, "argv", ["pretraining_text.py", str(out)])
    pretraining_text.main()
    found, record = out.read_text("utf-8"), json.loads(capsys.readouterr().out)
    assert record == json.loads(out.with_suffix(".json").read_text("utf-8"))
    assert record["sha256"] == pretraining_text.digest(found)
    assert {path.name for path in out.parent.iterdir()} == {"text.txt", "text.json"}
    monkeypatch.setattr(pretraining_text, "DOCSTRINGS", ["thing", "not_there"])
    with pytest.raises(ValueError, match="expected the package not_there"):
        pretraining_text.main()
    assert out.read_text("utf-8") == found
    monkeypatch.setattr(sys, "argv", ["pretraining_text.py", "text.md"])
    with pytest.raises(SystemExit, match=r"expected OUT\.txt"):
        pretraining_text.main()
