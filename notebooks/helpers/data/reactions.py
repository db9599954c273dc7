"""Chemical reactions as SMILES, and RXNMapper, an ALBERT that has learned from them.

Source: Schwaller et al. 2021, doi:10.1126/sciadv.abe4166; its package has an MIT licence.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np

PACKAGE, WHEEL = "rxnmapper==0.4.3", "rxnmapper-0.4.3-py3-none-any.whl"
SHA256 = "27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5"
MODEL = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
DOWNLOAD = "download -q --no-deps --only-binary :all: --retries 1 --timeout 10 -d"
TOKEN = re.compile(r"\[[^]]+]|Br|Cl|>>|%\d\d|.")  # an atom in brackets is one token
ELEMENT = re.compile(r"\[?\d*([A-Z][a-z]?|se|as|[bcnops])")
SIMPLE = re.compile(r"\[(?!nH)(Br|Cl|[BCNOPSFI]|[bcnops])H?\d?:\d+]")  # no bracket


def fetch_wheel():
    """Path of the package, in ``$DATA_FOLDER`` or fetched by pip; else ValueError.

    It has the model's weights. It is not installed, and none of its code is run.
    """
    folder = os.environ.get("DATA_FOLDER") or Path(__file__).parents[2] / "data"
    path = Path(folder) / WHEEL
    if not path.exists():
        command = [sys.executable, "-m", "pip", *DOWNLOAD.split(), path.parent, PACKAGE]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            got = (run.stderr.strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"expected pip to download {PACKAGE}, got {got}")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        path.unlink()
        raise ValueError(f"{WHEEL} is removed: expected checksum {SHA256}, got {found}")
    return path


def read_wheel(path):
    """Configuration, vocabulary, tensors by name, and mapped reactions of its tests."""
    import torch  # the weights are stored by it

    with zipfile.ZipFile(path) as file:
        config = json.loads(file.read(f"{MODEL}/config.json"))
        vocabulary = file.read(f"{MODEL}/vocab.txt").decode().splitlines()
        stored = BytesIO(file.read(f"{MODEL}/pytorch_model.bin"))
        tests = file.read("tests/test_mapper.py").decode()
    tensors = torch.load(stored, map_location="cpu", weights_only=True)
    mapped = re.findall(r'"mapped_rxn": "([^" ]+)"', tests)
    return config, vocabulary, tensors, mapped


def read_reaction(smiles):
    """Tokens of a reaction, and their numbers in its map: 0 if they have none."""
    found = TOKEN.findall(smiles)
    if found.count(">>") != 1:
        raise ValueError(f"expected a reaction with one >>, got {smiles!r}")
    numbers = [re.search(r":(\d+)]", token) for token in found]
    tokens = [re.sub(r":\d+]", "]", SIMPLE.sub(r"\1", token)) for token in found]
    return tokens, np.array([int(number[1]) if number else 0 for number in numbers])


def encode(tokens, vocabulary, length):
    """Numbers as the model takes them: [CLS], tokens, [SEP], and -1 up to ``length``."""
    ids = [vocabulary.index(token) for token in ("[CLS]", *tokens, "[SEP]")]
    return np.array(ids + [-1] * (length - len(ids)))


def elements(tokens):
    """The chemical element of each token, or "" where it is no atom: texts ``s``."""
    found = [ELEMENT.match(token) for token in tokens]
    return np.array([match[1].capitalize() if match else "" for match in found])


def atom_map(maps, tokens, *, both=False):
    """The atom before the arrow that each atom after it looks at most: ``... p, p``.

    Places in ``tokens``, of both. Maps ``... s s`` are of encoded tokens, so begin with
    [CLS]; with ``both``, weights in the other direction are added, as RXNMapper does.
    """
    atoms, arrow = np.flatnonzero(elements(tokens) != ""), tokens.index(">>")
    old, new = atoms[atoms < arrow], atoms[atoms > arrow]
    weights = maps[..., new[:, None] + 1, old + 1]  # ... p r
    if both:
        weights = weights + maps[..., old + 1, new[:, None] + 1]
    return old[weights.argmax(axis=-1)], new
