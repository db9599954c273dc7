"""``make`` makes the environment, makes it anew when it must, or says why it cannot.

Make and the ``Makefile`` are real; Python, pip and uv are stand-ins that write down how
they were called.
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import pages

REQUIREMENTS = pages.ROOT / "requirements"
LOCKS = sorted(REQUIREMENTS.glob("lock*.txt"))
PYTHON = """#!/bin/sh
case "$*" in
    *sys.exit*) case "$*" in *{version}*) ;; *) exit 1 ;; esac ;;
    *print*) echo {version} ;;
    *ensurepip*) {ensurepip} ;;
    *"-m venv"*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    *) echo "$*" >> calls; {install} ;;
esac
"""
SOUND = {"version": "3.12", "ensurepip": "true", "install": "true"}


@pytest.fixture
def project(tmp_path):
    """A folder with the Makefile and the locks; make finds only what a test adds."""
    shutil.copytree(REQUIREMENTS, tmp_path / "requirements")
    shutil.copy(pages.ROOT / "Makefile", tmp_path)
    (tmp_path / "bin").mkdir()
    tools = "sh make mkdir cp rm touch grep head uname cat"
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
    done = subprocess.run(
        ["make", "environment", *arguments],
        cwd=project,
        env={"PATH": str(project / "bin"), "HOME": str(project)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    return done.returncode, done.stdout, (project / "calls").read_text()


def test_a_complete_environment_is_left_alone_until_the_lock_changes(project):
    add(project, "python3", PYTHON.format(**SOUND))
    status, text, calls = make(project)
    assert status == 0 and "-r requirements/lock.txt" in calls, text
    assert make(project) == (0, "make: Nothing to be done for 'environment'.\n", "")
    later = time.time() + 10
    os.utime(project / "requirements" / "lock.txt", (later, later))
    assert "-r requirements/lock.txt" in make(project)[2]


def test_an_interrupted_installation_starts_again(project):
    broken = SOUND | {"install": 'case "$*" in *"-r "*) exit 1;; esac'}
    add(project, "python3", PYTHON.format(**broken))
    status, _, calls = make(project)
    assert status != 0
    assert "-m uv pip install" in calls and "\n-m pip install" in calls, "pip tries too"
    (project / ".venv" / "left").write_text("by the interrupted installation")
    add(project, "python3", PYTHON.format(**SOUND))
    assert make(project)[0] == 0
    assert not (project / ".venv" / "left").exists()


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ({"version": "3.14"}, "needs Python 3.11, 3.12 or 3.13, but python3 is 3.14"),
        ({"ensurepip": "exit 1"}, "apt install python3-venv"),  # as on Debian
    ],
    ids=["too new", "no venv"],
)
def test_an_unsuitable_python_gives_one_clear_error(project, python, said):
    add(project, "python3", PYTHON.format(**SOUND | python))
    status, text, calls = make(project)
    assert status != 0 and not calls
    assert said in text.partition("make: ***")[0] and text.count("\n") == 2


def test_the_first_working_python_is_used(project):
    """A name alone is not enough: pyenv's shims, for one, may lead nowhere."""
    add(project, "python3.13", "#!/bin/sh\nexit 127\n")
    add(project, "python3.12", PYTHON.format(**SOUND))
    status, text, _ = make(project, "--dry-run")
    assert status == 0 and "python3.12 -m venv .venv" in text


@pytest.mark.parametrize(
    ("driver", "cuda"), [("exit 9", False), ("535.104", False), ("580.65", True)]
)
def test_cuda_is_installed_for_a_gpu_with_a_new_driver(project, driver, cuda):
    add(project, "python3", PYTHON.format(**SOUND))
    driver = driver if "exit" in driver else f"echo {driver}"
    add(project, "nvidia-smi", f"#!/bin/sh\n{driver}\n")
    add(project, "uname", "#!/bin/sh\necho Linux\n")
    status, text, calls = make(project)
    assert status == 0, text
    assert ("-r requirements/lock-cuda.txt" in calls) == cuda


def pins(lock):
    """``{(name, marker): version}`` of a lock file."""
    found = {}
    for line in Path(lock).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pin, _, marker = line.partition(" ; ")
            name, _, version = pin.partition("==")
            found[name, marker] = version.strip()
    return found


def test_locks_are_exact_and_name_no_host():
    for lock in LOCKS:
        text = lock.read_text(encoding="utf-8")
        assert "://" not in text and "index" not in text, "an address of an index"
        for (name, _), version in pins(lock).items():
            assert re.fullmatch(r"[\w.+!-]+", version), f"{name} has no exact version"


def versions(lock, python):
    """``{name: version}`` of what a lock installs on Linux."""
    here = {"python_full_version": f"{python}.0", "sys_platform": "linux"}
    return {
        name: version
        for (name, marker), version in pins(REQUIREMENTS / lock).items()
        if not marker or Marker(marker).evaluate(here)
    }


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_cuda_lock_agrees_with_the_main_lock(python):
    """So that the two can be installed together."""
    main, cuda = versions("lock.txt", python), versions("lock-cuda.txt", python)
    assert cuda["jax-cuda13-plugin"] == main["jax"]
    assert {name: main.get(name, cuda[name]) for name in cuda} == cuda


def test_both_locks_satisfy_the_requirements_of_readers():
    """What ``make`` installs and what Colab has lie within requirements.txt."""
    lines = (pages.ROOT / "requirements.txt").read_text().splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            need = Requirement(line.partition("  #")[0])
            for lock in ("lock.txt", "lock-colab.txt"):
                found = [
                    v
                    for (n, _), v in pins(REQUIREMENTS / lock).items()
                    if n == canonicalize_name(need.name)
                ]
                assert found or lock == "lock-colab.txt", f"{lock} lacks {need.name}"
                for version in found:
                    assert need.specifier.contains(version), f"{lock}: {line} {version}"


def test_colab_has_what_the_pages_import():
    """Otherwise the first cell would have to install something."""
    found = {name for name, _ in pins(REQUIREMENTS / "lock-colab.txt")}
    needed = "jax flax optax torch numpy matplotlib seaborn safetensors scikit-learn"
    assert found >= set(needed.split())
