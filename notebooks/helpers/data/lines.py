"""Lines of four languages, from files that are on every machine with these packages."""

import sysconfig
from importlib.util import find_spec
from pathlib import Path

import numpy as np

SOURCES = {  # the package, None for the standard library, and its files
    "Python": (None, "email/*.py"),
    "C": ("numpy", "**/*.h"),
    "JavaScript": ("matplotlib", "**/*.js"),
    "English": ("sklearn", "datasets/descr/*.rst"),
}
LANGUAGES = (*SOURCES,)


def languages(n_train=400, n_test=150):
    """Lines and their languages: texts, labels, test texts, test labels; arrays ``n``.

    At most ``n_train`` lines of each language from the first four fifths of its files,
    shuffled, and at most ``n_test`` new ones from the others. Labels are places in
    ``LANGUAGES``. Lines are ASCII of 8 to 40 characters, longer ones cut off.
    """
    files = {name: files_of(name) for name in LANGUAGES}
    first = [paths[: len(paths) * 4 // 5] for paths in files.values()]
    others = [paths[len(paths) * 4 // 5 :] for paths in files.values()]
    texts, labels = labelled(first, n_train)
    test_texts, test_labels = labelled(others, n_test)
    new = ~np.isin(test_texts, texts)  # a line can be in several files
    return texts, labels, test_texts[new], test_labels[new]


def files_of(language):
    """The files of a language, sorted; fewer than two raise ValueError."""
    package, pattern = SOURCES[language]
    folder = Path(sysconfig.get_path("stdlib"))
    if package:
        folder = Path(find_spec(package).submodule_search_locations[0])
    paths = sorted(folder.glob(pattern))
    if len(paths) < 2:  # one to learn from, one for the test
        found = f"{len(paths)} at {folder / pattern}"
        raise ValueError(f"expected two files or more for {language}, got {found}")
    return paths


def labelled(files, n):
    """At most ``n`` lines of the files of each language, shuffled, and their labels."""
    rng = np.random.default_rng(0)
    drawn = [rng.permutation(lines_of(paths))[:n] for paths in files]
    labels = np.repeat(np.arange(len(drawn)), [len(lines) for lines in drawn])
    order = rng.permutation(len(labels))
    return np.concatenate(drawn)[order], labels[order]


def lines_of(paths):
    """Different lines of these files: ASCII, from 8 to 40 characters."""
    texts = (path.read_text("utf-8") for path in paths)
    found = (line.strip() for text in texts for line in text.splitlines())
    return sorted({line[:40] for line in found if len(line) >= 8 and line.isascii()})
