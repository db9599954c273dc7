"""The first code cell of a page: Colab gets the folder, everyone else gets nothing.

There is a stand-in for ``google.colab``, and git is told to find the repository's
address in a local clone. Whole pages run with Colab's versions in ``make test-colab``.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pages

PAGES = pages.sources()
STAND_IN = """
import sys, types

colab = types.ModuleType("google.colab")
colab.output = types.ModuleType("google.colab.output")  # JAX asks for it in Colab
sys.modules["google.colab"] = colab
sys.modules["google.colab.output"] = colab.output
"""
FILES = {".py", ".md", ".yml", ".ipynb", ".txt", ".toml", ".cff"}


def first_code_cell(page):
    return next(cell for cell in pages.read_py(page) if cell.kind == "code")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_cell_is_the_same_everywhere(page):
    cell, model = first_code_cell(page), first_code_cell(PAGES[0])
    assert cell.side == "shared", f"{cell} is not shared"
    assert cell.source == model.source, f"{cell} differs from {model}"
    assert len(cell.source.splitlines()) <= 20
    assert "install" not in cell.source, "nothing is installed, so nothing is upgraded"
    assert not any(
        line.lstrip().startswith(("!", "%")) for line in cell.source.split("\n")
    )


def test_every_copy_of_the_address_is_the_one_of_the_settings():
    """Whatever text of the repository names the host and the project names this one."""
    address = pages.repository()
    forms = pages.addresses(address)
    project = address.rpartition("/")[2]
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=pages.ROOT,
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout.splitlines()
    copies = 0
    for name in listed:
        path = pages.ROOT / name
        if path.suffix in FILES and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                if f"/{project}" in line and "https://" in line:
                    assert any(form in line for form in forms), (
                        f"{name}: {line.strip()!r}, but none of {forms}"
                    )
                    copies += 1
    assert copies > len(PAGES), "the pages hold the address"
    for page in PAGES:
        assert f'REPOSITORY = "{address}"' in first_code_cell(page).source


def run_cell(folder, *, colab, environment=None):
    """Run the cell in a fresh Python; return where it ended and what it can import."""
    code = (STAND_IN if colab else "") + first_code_cell(PAGES[0]).source
    code += "\nimport os, helpers.reference\n"
    code += "print(os.getcwd()); print(helpers.__file__)\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return [Path(line).resolve() for line in done.stdout.splitlines()]


def test_nothing_happens_outside_colab(tmp_path):
    """No folder is changed, and nothing is fetched: any attempt to would fail."""
    where, helpers = run_cell(
        pages.NOTEBOOKS, colab=False, environment=offline(tmp_path)
    )
    assert where == pages.NOTEBOOKS
    assert helpers.is_relative_to(pages.NOTEBOOKS)


def test_nothing_happens_in_colab_when_the_folder_is_there(tmp_path):
    where, _ = run_cell(pages.NOTEBOOKS, colab=True, environment=offline(tmp_path))
    assert where == pages.NOTEBOOKS


def test_in_colab_the_folder_is_fetched_once(tmp_path):
    """A second run and one after a restart find what the first fetched."""
    content = tmp_path / "content"
    content.mkdir()
    fetched, helpers = run_cell(content, colab=True, environment=redirected(tmp_path))
    assert fetched == content / pages.repository().rpartition("/")[2] / "notebooks"
    assert helpers.is_relative_to(fetched)
    assert run_cell(content, colab=True, environment=offline(tmp_path))[0] == fetched
    assert run_cell(fetched, colab=True, environment=offline(tmp_path))[0] == fetched


def test_a_failed_fetch_is_an_error(tmp_path):
    """No page goes on without its helpers, and git's own words say why."""
    with pytest.raises(AssertionError, match="nowhere"):
        run_cell(tmp_path, colab=True, environment=offline(tmp_path))


def test_a_failed_fetch_stops_with_one_sentence(tmp_path):
    """No exit status of git, no traceback, nothing after it."""
    run = [sys.executable, "-c", STAND_IN + first_code_cell(PAGES[0]).source]
    environment = offline(tmp_path)
    done = subprocess.run(
        run, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8"
    )
    sentence = f"{pages.repository()} cannot be fetched: a placeholder, or not reached"
    assert done.returncode and done.stderr.splitlines()[-1] == sentence
    assert "Traceback" not in done.stderr


def offline(tmp_path):
    """An environment in which any attempt to fetch the repository fails."""
    return git_config(tmp_path / "nowhere")


def redirected(tmp_path):
    """An environment in which the repository's address is a local bare clone.

    The clone holds the present state of the files, committed or not.
    """
    work, bare = tmp_path / "work", tmp_path / "bare.git"
    work.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "notebooks"],
        cwd=pages.ROOT,
        check=True,
        capture_output=True,
        encoding="utf-8",
    ).stdout.splitlines()
    for name in listed:
        if (pages.ROOT / name).is_file():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(pages.ROOT / name, work / name)
    me = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        [*me, "commit", "--quiet", "--message", "present state"],
        ["clone", "--quiet", "--bare", ".", str(bare)],
    ):
        subprocess.run(["git", *command], cwd=work, check=True)
    return git_config(bare)


def git_config(target):
    return dict(
        os.environ,
        GIT_CONFIG_COUNT="1",
        GIT_CONFIG_KEY_0=f"url.{target.as_uri()}.insteadOf",
        GIT_CONFIG_VALUE_0=pages.repository(),
    )
