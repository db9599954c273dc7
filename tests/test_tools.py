"""The build names what fails, and does nothing twice; ``make`` makes its environment.

A tiny book with these tools; Python, pip and uv write down how they were called.
"""

import os
import re
import shutil
import subprocess
import sys

import jupytext
import pytest
import yaml
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pages

REQUIREMENTS = pages.ROOT / "requirements"
TOLD = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
PAGE = """# %% [markdown]
# # Tiny
#
# Some words.

# %%
from helpers import double

# %%
x = double.double(2)
print("twice two is", x)
"""
OTHER = """# %% [markdown]
# # Other

# %%
import os
print("no bar:", os.environ["TQDM_DISABLE"])
"""
STATE = """import sys; sys.path.append("tools")
import build_book
print(build_book.is_fresh(), [page.stem for page in build_book.outdated()])
"""


@pytest.fixture
def tiny(tmp_path):
    """A book of two notebooks and an index; returns its folder."""
    root = tmp_path / "tiny"
    helpers = root / "notebooks" / "helpers"
    helpers.mkdir(parents=True)
    shutil.copytree(pages.ROOT / "tools", root / "tools")
    (root / "book").mkdir()
    (root / "book" / "index.md").write_text(
        "# Tiny\n\nA [page](../notebooks/tiny_jax.ipynb).\n"
    )
    settings = pages.config()
    settings["sphinx"] = {"local_extensions": {"pages": "tools"}, "config": {}}
    for name in ("logo", "html", "launch_buttons"):
        settings.pop(name)
    (root / "_config.yml").write_text(yaml.safe_dump(settings))
    toc = "format: jb-book\nroot: book/index\nparts:\n  - chapters:\n"
    toc += "".join(f"    - file: notebooks/tiny_{side}\n" for side in pages.SIDES)
    (root / "_toc.yml").write_text(toc)
    (helpers / "__init__.py").write_text("")
    (helpers / "double.py").write_text("def double(x):\n    return 2 * x\n")
    write(root / "notebooks" / "tiny_jax.py", PAGE)
    write(root / "notebooks" / "tiny_torch.py", OTHER)
    return root


def write(page, text):
    """Write a page, and its notebook."""
    page.write_text(text)
    jupytext.write(jupytext.read(page), page.with_suffix(".ipynb"))


def change(path, old, new):
    text = path.read_text()
    assert old in text
    if path.parent.name == "notebooks":
        write(path, text.replace(old, new))
    else:
        path.write_text(text.replace(old, new))


def run(root, *command):
    """The status of a command, and what it printed."""
    options = TOLD | {"cwd": root, "env": {**os.environ, "NO_COLOR": "1"}}
    done = subprocess.run([sys.executable, *command], **options)
    return done.returncode, done.stdout


def test_a_book_is_built_once_and_later_only_what_changed(tiny):
    status, text = run(tiny, "tools/build_book.py")
    assert status == 0, text
    assert "Executing notebook" not in text, "Sphinx finds every page in the cache"
    page = (tiny / "_build/html/notebooks/tiny_jax.html").read_text()
    assert "twice two is 4" in page
    assert "no bar: 1" in (tiny / "_build/html/notebooks/tiny_torch.html").read_text()
    assert re.search(r"pages: \d+ s for 2 of them, the sum of all \d+ s", text), text
    status, text = run(tiny, "tools/build_book.py", "--changed")
    assert (status, text) == (0, "The book is up to date with its sources.\n")
    change(tiny / "notebooks/tiny_jax.py", "Some words", "Other words")
    change(tiny / "notebooks/tiny_torch.py", "import os", "import os  # changed")
    assert run(tiny, "-c", STATE)[1] == "False ['tiny_torch']\n", "not for words alone"
    (tiny / "notebooks/helpers/jax").mkdir()
    (tiny / "notebooks/helpers/jax/one.py").write_text("")
    change(tiny / "notebooks/tiny_torch.py", "  # changed", "")
    assert run(tiny, "-c", STATE)[1] == "False ['tiny_jax']\n", "JAX's helpers"
    change(tiny / "notebooks/helpers/double.py", "2 * x", "x + x")
    assert run(tiny, "-c", STATE)[1] == "False ['tiny_jax', 'tiny_torch']\n"


def test_pages_that_fail_are_named_with_their_cells(tiny):
    """All of them, by one build; and the error."""
    change(tiny / "notebooks/tiny_jax.py", "x = ", "double.double('a') / 2\nx = ")
    change(tiny / "notebooks/tiny_torch.py", "import os", "import os; os._exit(9)")
    status, text = run(tiny, "tools/build_book.py")
    assert status != 0 and "The book was not built" in text
    assert re.search("tiny_jax.ipynb, cell 3: .*TypeError: ", text, re.DOTALL), text
    assert re.search(r"tiny_torch.ipynb, cell \d: Kernel died", text), text


def test_a_warning_fails_and_names_page_and_cell(tiny):
    change(tiny / "notebooks/tiny_jax.py", "Some words", "See [it](nowhere.ipynb)")
    noisy = "import os, sys; sys.stderr.write('!')"
    change(tiny / "notebooks/tiny_torch.py", "import os", noisy)
    status, text = run(tiny, "tools/build_book.py")
    assert status != 0 and "The book was not built" in text
    assert re.search("tiny_jax.ipynb:10004: WARNING: .*nowhere", text), text
    assert re.search("tiny_torch.ipynb.* WARNING: .*stderr", text), text


def test_jupyter_book_alone_executes_the_pages(tiny):
    program = str(pages.Path(sys.executable).with_name("jupyter-book"))
    status, text = run(tiny, program, "build", ".")
    assert status == 0, text
    page = (tiny / "_build/html/notebooks/tiny_jax.html").read_text()
    assert "twice two is 4" in page


PYTHON = """#!/bin/sh
case "$*" in
    *sys.exit*) exit {suitable} ;;
    *ensurepip*) exit {no_venv} ;;
    *"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *) echo "$*" >> calls ;;
esac
"""


@pytest.fixture
def project(tmp_path):
    """A folder with the Makefile and the locks; make finds only what a test adds."""
    shutil.copytree(REQUIREMENTS, tmp_path / "requirements")
    shutil.copy(pages.ROOT / "Makefile", tmp_path)
    (tmp_path / "bin").mkdir()
    tools = "sh make mkdir cp rm touch grep head uname cat test"
    for tool in tools.split():
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool))
    return tmp_path


def add(project, name, text):
    path = project / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def make(project, *arguments):
    """``make environment``; returns its status, its output and what was installed."""
    (project / "calls").write_text("")
    env = {"PATH": str(project / "bin"), "HOME": str(project)}
    command = ["make", "environment", *arguments]
    done = subprocess.run(command, **TOLD, cwd=project, env=env)
    return done.returncode, done.stdout, (project / "calls").read_text()


@pytest.mark.parametrize(
    ("driver", "cuda"), [("", ""), ("535.104", ""), ("580.65", "cuda")]
)
def test_the_environment_is_made_once_with_cuda_for_a_new_driver(project, driver, cuda):
    """By the first Python that runs: pyenv's shims, for one, may lead nowhere."""
    add(project, "python3.13", "#!/bin/sh\nexit 127\n")
    add(project, "python3.12", PYTHON.format(suitable=0, no_venv=0))
    if driver:
        add(project, "nvidia-smi", f"#!/bin/sh\necho {driver}\n")
        add(project, "uname", "#!/bin/sh\necho Linux\n")
    status, text, calls = make(project)
    assert status == 0 and "-r requirements/lock.txt" in calls, text
    assert ("lock-cuda.txt" in calls) == bool(cuda)
    assert make(project) == (0, "make: Nothing to be done for 'environment'.\n", "")
    (project / "my py").symlink_to(project / "bin")
    (project / ".venv/complete").unlink()
    assert make(project, f"PYTHON={project}/my py/python3.12")[0] == 0


UNSUITABLE = {
    "needs Python 3.11, 3.12 or 3.13": {"suitable": 1, "no_venv": 0},
    "apt install python3-venv": {"suitable": 0, "no_venv": 1},
}


@pytest.mark.parametrize("said", UNSUITABLE)
def test_an_unsuitable_python_gives_one_clear_error(project, said):
    add(project, "python3", PYTHON.format(**UNSUITABLE[said]))
    status, text, calls = make(project)
    assert status != 0 and not calls
    assert said in text.partition("make: ***")[0]


def versions(lock, python="3.12"):
    """``{name: version}`` of what a lock installs on Linux."""
    here, found = {"python_full_version": f"{python}.0", "sys_platform": "linux"}, {}
    for line in (REQUIREMENTS / lock).read_text("utf-8").splitlines():
        assert "://" not in line, "an address of an index"
        pin, _, marker = line.partition(" ; ")
        if not line.startswith("#") and (not marker or Marker(marker).evaluate(here)):
            name, version = pin.split("==")
            found[name] = version.strip()
    return found


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_cuda_lock_can_be_installed_beside_the_main_lock(python):
    main, cuda = versions("lock.txt", python), versions("lock-cuda.txt", python)
    assert cuda["jax-cuda13-plugin"] == main["jax"]
    assert {name: main.get(name, cuda[name]) for name in cuda} == cuda


def test_both_locks_satisfy_the_requirements_of_readers():
    """And Colab's has all that pages import, so that they install nothing there."""
    main, colab = versions("lock.txt"), versions("lock-colab.txt")
    for line in (pages.ROOT / "requirements.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            need = Requirement(line.partition("  #")[0])
            name = canonicalize_name(need.name)
            assert need.specifier.contains(main[name]), line
            assert name not in colab or need.specifier.contains(colab[name]), line
    imported = "jax flax optax torch numpy matplotlib safetensors scikit-learn"
    assert colab.keys() >= {*imported.split()}
