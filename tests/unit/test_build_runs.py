"""A build trains for real: its pages find an empty folder for runs, and no bar."""

import os
from pathlib import Path

import pytest

from test_build import build, change, tiny  # noqa: F401

SHOW = """import os
from pathlib import Path
folder = Path(os.environ["RUNS_FOLDER"])
print("found", [*folder.iterdir()], os.environ["TQDM_DISABLE"])
folder.joinpath("left").write_text("")
Path("seen.txt").write_text(str(folder))
"""


@pytest.mark.slow
def test_a_build_has_a_folder_of_its_own_for_runs(tiny, monkeypatch):  # noqa: F811
    """Fresh, whatever the reader has set, and gone when the build has ended."""
    monkeypatch.setenv("RUNS_FOLDER", str(tiny))
    monkeypatch.setenv("TQDM_DISABLE", "")
    change(tiny / "notebooks/tiny_torch.py", "\n1\n", f"\n{SHOW}")
    status, lines = build(tiny)
    assert status == 0, "\n".join(lines)
    page = (tiny / "_build/html/notebooks/tiny_torch.html").read_text()
    assert "found [] 1" in page
    folder = Path((tiny / "notebooks/seen.txt").read_text())
    assert folder != tiny
    assert not folder.exists()
    assert (tiny / "notebooks").exists()


def test_pytest_has_a_folder_of_its_own_for_runs():
    """So pages that nbmake executes here train for real too."""
    folder = Path(os.environ["RUNS_FOLDER"])
    assert folder.is_dir()
    assert folder.name.startswith("runs-")
    assert os.environ["TQDM_DISABLE"] == "1"
