"""The environment makes itself, or says in one sentence why it cannot.

Each sentence is provoked for real, by the program as `make` runs it: an old Python, a
Python without ``ensurepip``, a disk that is too small (a file system of a few
megabytes), and one that runs full during the installation.
"""

import ast
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import environment
import pages
from disks import run, small_disk

PROGRAM = pages.ROOT / "tools" / "environment.py"
FIND = pages.ROOT / "tools" / "find-python.sh"
REQUIREMENTS = pages.ROOT / "requirements"
LOCKS = sorted(REQUIREMENTS.glob("lock*.txt"))


def is_one_sentence(text):
    """One line that ends with a full stop, and no traceback."""
    lines = [line for line in text.splitlines() if line.strip()]
    return len(lines) == 1 and lines[0].endswith(".") and "Traceback" not in text


def project(tmp_path):
    """A copy of the part of the project that makes environments."""
    root = tmp_path / "project"
    shutil.copytree(REQUIREMENTS, root / "requirements")
    shutil.copytree(pages.ROOT / "tools", root / "tools")
    shutil.copy(pages.ROOT / "Makefile", root)
    return root


def other_pythons():
    """Interpreters on this machine that are too old, from pyenv and the PATH."""
    root = run("pyenv", "root") if shutil.which("pyenv") else (1, "")
    found = [
        path
        for name in ("2.7", "3.6", "3.8", "3.9", "3.10")
        for path in Path(root[1].strip() or "/nowhere").glob(
            f"versions/{name}.*/bin/python"
        )
        if root[0] == 0
    ]
    found += [
        Path(p)
        for p in map(shutil.which, ("python2.7", "python3.9", "python3.10"))
        if p
    ]
    return [path for path in found if run(path, "-c", "")[0] == 0]


def test_every_old_python_here_gets_the_sentence():
    for python in other_pythons():
        status, text = run(python, PROGRAM)
        assert status != 0 and is_one_sentence(text), f"{python}: {text}"
        assert "too old" in text and "3.11, 3.12 or 3.13" in text


def test_an_old_python_can_read_the_program():
    """Also where none is installed: ASCII, and no syntax younger than Python 3.4."""
    source = PROGRAM.read_text(encoding="ascii")
    ast.parse(source, feature_version=(3, 4))
    assert not re.search(r"\bf\"|:=|\bnonlocal\b|->", source)


@pytest.mark.parametrize(
    ("found", "word"), [((2, 7, 18), "old"), ((3, 10, 0), "old"), ((3, 14, 0), "new")]
)
def test_the_sentence_says_what_was_found_and_what_is_needed(found, word):
    with pytest.raises(environment.Problem) as problem:
        environment.check_python(["3.11", "3.12", "3.13"], found)
    sentence = str(problem.value)
    assert f"Python {found[0]}.{found[1]}" in sentence and f"too {word}" in sentence
    assert "3.11, 3.12 or 3.13" in sentence and sys.executable in sentence


def test_make_tells_the_owner_of_an_old_python(tmp_path):
    """A machine whose only Python is an old one: here a stand-in that answers so."""
    root = project(tmp_path)
    fake = tmp_path / "bin"
    fake.mkdir()
    for name in ("python3", "python"):
        stand_in = fake / name
        stand_in.write_text(
            f"#!/bin/sh\n"
            f'if [ "$1" = -c ]; then [ -z "$2" ] || echo 3.9; exit 0; fi\n'
            f"exec '{sys.executable}' -c 'import sys, runpy\n"
            f"sys.version_info = (3, 9, 2)\n"
            f"sys.argv = sys.argv[1:]\n"
            f'runpy.run_path(sys.argv[0], run_name="__main__")\' "$@"\n'
        )
        stand_in.chmod(0o755)
    for tool in ("sh", "make", "sed", "awk", "env"):
        (fake / tool).symlink_to(shutil.which(tool))
    status, text = run(
        "make", "book", cwd=root, env={"PATH": str(fake), "HOME": str(fake)}
    )
    sentence = [line for line in text.splitlines() if "make:" not in line]
    assert status != 0 and is_one_sentence("\n".join(sentence)), text
    assert "Python 3.9" in text and "too old" in text


def test_make_says_so_when_there_is_no_python_at_all(tmp_path):
    root = project(tmp_path)
    empty = tmp_path / "bin"
    empty.mkdir()
    for tool in ("sh", "make"):
        (empty / tool).symlink_to(shutil.which(tool))
    status, text = run("make", "book", cwd=root, env={"PATH": str(empty)})
    assert status != 0 and "no Python was found" in text and "Traceback" not in text


def test_the_finder_takes_the_first_that_can_run(tmp_path):
    """A name alone is not enough: pyenv's shims, for one, may lead nowhere."""
    fake = tmp_path / "bin"
    fake.mkdir()
    for name, answer in (("python3.13", "exit 127"), ("python3.12", "echo 3.12")):
        (fake / name).write_text(f"#!/bin/sh\n{answer}\n")
        (fake / name).chmod(0o755)
    (fake / "sh").symlink_to(shutil.which("sh"))
    status, text = run("sh", FIND, "3.13", "3.12", env={"PATH": str(fake)})
    assert (status, text.strip()) == (0, "python3.12")


def test_a_missing_venv_package_is_named(tmp_path):
    """As on Debian without python3-venv: ``ensurepip`` is not there."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "ensurepip.py").write_text(
        "raise ImportError('No module named ensurepip')"
    )
    root = project(tmp_path)
    status, text = run(
        sys.executable,
        root / "tools" / "environment.py",
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(hidden)},
    )
    assert status != 0 and is_one_sentence(text), text
    assert "sudo apt install python3" in text and "-venv" in text
    assert not (root / ".venv").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts a tmpfs")
def test_a_disk_that_is_too_small_is_noticed_before(tmp_path):
    """Both numbers are named, and nothing was written."""
    root = project(tmp_path)
    script = (
        f'cp -r "{root}"/* "$DISK" && cd "$DISK" && '
        f'"{sys.executable}" tools/environment.py; echo status $?; ls -A'
    )
    _, text = small_disk(tmp_path, script)
    sentence, _, rest = text.partition("status ")
    assert is_one_sentence(sentence), text
    assert re.search(r"needs about [\d.]+ GiB, and 0\.0 GiB are free in ", sentence)
    assert rest.startswith("1\n") and ".venv" not in rest


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts a tmpfs")
def test_a_disk_that_runs_full_during_the_installation(tmp_path):
    """The check before is lied to; the full disk itself is real."""
    root = project(tmp_path)
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import runpy, shutil, sys\n"
        "real = shutil.disk_usage\n"
        "plenty = real(sys.prefix)._replace(free=99 * 2**30)\n"
        "first = [True]\n"
        "def lie(path):\n"
        "    return plenty if first and first.pop() else real(path)\n"
        "shutil.disk_usage = lie\n"
        "sys.argv = ['tools/environment.py']\n"
        "runpy.run_path('tools/environment.py', run_name='__main__')\n"
    )
    script = (
        f'cp -r "{root}"/* "$DISK" && cd "$DISK" && TMPDIR="$DISK" '
        f'"{sys.executable}" "{driver}"; echo status $?; cat .venv/complete.sha256'
    )
    _, text = small_disk(tmp_path, script)
    assert "The disk ran full during the installation" in text, text
    assert "status 1" in text and "complete.sha256: No such file" in text


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_the_words_for_a_full_disk_are_recognised(tmp_path, capfd):
    """The kernel's own words, from a device that is always full."""
    with pytest.raises(environment.Problem, match="ran full"):
        environment.run(
            ["sh", "-c", "cat /dev/zero > /dev/full"], str(tmp_path / ".venv"), 7
        )
    assert "No space left" in capfd.readouterr().out


def test_an_unfinished_environment_is_made_anew(tmp_path, monkeypatch):
    """Without the stamp, or with one for another lock, it does not count."""
    folder = tmp_path / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    locks = [environment.MAIN_LOCK]
    assert not environment.is_complete(str(folder), locks), "it has no stamp"
    (folder / environment.STAMP).write_text(environment.digest(locks))
    assert environment.is_complete(str(folder), locks)
    assert not environment.is_complete(str(folder), [*locks, environment.CUDA_LOCK])
    (folder / "bin" / "python").unlink()
    assert not environment.is_complete(str(folder), locks), "its Python is gone"


def test_a_complete_environment_is_left_alone():
    """The one these tests run in: nothing is printed, nothing is installed."""
    if Path(sys.prefix) != pages.ROOT / ".venv":
        pytest.skip("these tests do not run in the environment that make made")
    stamp = Path(sys.prefix) / environment.STAMP
    before = stamp.stat().st_mtime_ns
    assert run(getattr(sys, "_base_executable", sys.executable), PROGRAM) == (0, "")
    assert stamp.stat().st_mtime_ns == before


def pins(lock):
    """``{(name, marker): version}`` of a lock file."""
    found = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pin, _, marker = line.partition(" ; ")
            name, _, version = pin.partition("==")
            found[name, marker] = version.strip()
    return found


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_is_exact_and_names_no_host(lock):
    text = lock.read_text(encoding="utf-8")
    assert "make lock" in text, "it says how it is remade"
    assert "://" not in text and "index" not in text, "no address of any package index"
    for (name, _), version in pins(lock).items():
        assert re.fullmatch(r"[\w.+!-]+", version), f"{name} has no exact version"


def test_the_cuda_lock_agrees_with_the_main_lock():
    """So that the two can be installed together."""
    from packaging.markers import Marker
    from packaging.version import Version

    def versions(lock, python, system):
        here = {
            "python_full_version": f"{python}.0",
            "python_version": python,
            "sys_platform": system,
        }
        return {
            name: Version(version)
            for (name, marker), version in pins(REQUIREMENTS / lock).items()
            if not marker or Marker(marker).evaluate(here)
        }

    for python in ("3.11", "3.12", "3.13"):
        main, cuda = (
            versions(n, python, "linux") for n in ("lock.txt", "lock-cuda.txt")
        )
        assert "jax-cuda13-plugin" in cuda and "jax" in main
        assert cuda["jax-cuda13-plugin"] == main["jax"]
        for name in set(main) & set(cuda):
            assert main[name] == cuda[name], f"Python {python}: {name}"
        for system in ("darwin", "win32"):
            assert not versions("lock-cuda.txt", python, system), "CUDA is for Linux"


def test_the_lock_and_colab_satisfy_the_requirements_of_readers():
    """What `make` installs and what Colab has both lie within requirements.txt."""
    from packaging.requirements import Requirement

    wanted = [
        Requirement(line.partition("  #")[0])
        for line in (pages.ROOT / "requirements.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    for lock in ("lock.txt", "lock-colab.txt"):
        found = pins(REQUIREMENTS / lock)
        for need in wanted:
            versions = [v for (name, _), v in found.items() if name == need.name]
            if lock == "lock.txt":
                assert versions, f"{lock} lacks {need.name}"
            for version in versions:
                assert need.specifier.contains(version), (
                    f"{lock}: {need.name} {version}"
                )


def test_colab_has_what_the_pages_import():
    """Otherwise the first cell would have to install something."""
    found = {name for name, _ in pins(REQUIREMENTS / "lock-colab.txt")}
    for name in ("jax", "flax", "optax", "torch", "numpy", "matplotlib", "safetensors"):
        assert name in found
    text = (REQUIREMENTS / "colab.txt").read_text(encoding="utf-8")
    assert re.search(r"\b20\d\d-\d\d-\d\d\b", text), "colab.txt says of which day it is"


def test_a_gpu_is_found_by_its_driver(tmp_path, monkeypatch):
    """No program, a program that fails, an old driver, a good one."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not environment.has_gpu()
    program = tmp_path / "nvidia-smi"
    for answer, expected in (
        ("exit 9", False),
        ("echo 535.104.05", False),
        ("echo 580.65.06", True),
        ("echo 595.10; echo 595.10", True),
    ):
        program.write_text(f"#!{shutil.which('sh', path='/bin:/usr/bin')}\n{answer}\n")
        program.chmod(0o755)
        assert environment.has_gpu() == expected, answer
