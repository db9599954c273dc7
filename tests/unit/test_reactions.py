"""RXNMapper from its wheel: fetched once, read, and one head that maps atoms.

Nothing here needs a network: pip finds a wheel that is made here. What the real weights
can do is tested where the real wheel is in the data folder, or can be fetched.
"""

import hashlib
import io
import json
import zipfile
from functools import cache

import numpy as np
import pytest
import torch

from helpers.data import published_masked, reactions
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import from_arrays
from hugging_face import callable_of, difference, tokens_of, whole
from sides import jax_side, on_both_sides, torch_side

TESTS = """
    "mapped_rxn": "[CH3:1][OH:2].Br>>[CH3:1]Br",
    "mapped_rxn": "CC>>[CH3:1][CH3:2] |f:0.1|",
"""


def made_wheel():
    """A wheel of the name that is asked for, with a tiny model."""
    stored, packed = io.BytesIO(), io.BytesIO()
    torch.save({"albert.x": torch.arange(3.0)}, stored)
    info = "rxnmapper-0.4.3.dist-info"
    with zipfile.ZipFile(packed, "w") as file:
        file.writestr(f"{reactions.MODEL}/config.json", json.dumps({"a": 1}))
        file.writestr(f"{reactions.MODEL}/vocab.txt", "[PAD]\n[CLS]\n[SEP]\nC\n")
        file.writestr(f"{reactions.MODEL}/pytorch_model.bin", stored.getvalue())
        file.writestr("tests/test_mapper.py", TESTS)
        about = "Metadata-Version: 2.1\nName: rxnmapper\nVersion: 0.4.3\n"
        file.writestr(f"{info}/METADATA", about)
        wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        file.writestr(f"{info}/WHEEL", wheel)
        file.writestr(f"{info}/RECORD", "")
    return packed.getvalue()


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """The only place where pip looks; ``$DATA_FOLDER`` is another, not yet there."""
    (tmp_path / "shelf").mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path / "data"))
    return tmp_path / "shelf"


def kept(shelf):
    """Names of the files in ``$DATA_FOLDER``."""
    folder = shelf.parent / "data"
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def refuse(*_, **__):
    raise AssertionError("pip is called")


def test_the_wheel_is_fetched_once_and_read(shelf, monkeypatch):
    """By pip, without what it depends on; then the file in the data folder is used."""
    wheel = made_wheel()
    (shelf / reactions.WHEEL).write_bytes(wheel)
    monkeypatch.setattr(reactions, "SHA256", hashlib.sha256(wheel).hexdigest())
    assert reactions.fetch_wheel() == wheel
    assert kept(shelf) == [reactions.WHEEL]
    monkeypatch.setattr(reactions.subprocess, "run", refuse)
    config, vocabulary, tensors, mapped = reactions.read_wheel(reactions.fetch_wheel())
    assert config == {"a": 1}
    assert vocabulary == ["[PAD]", "[CLS]", "[SEP]", "C"]
    assert {name: x.tolist() for name, x in tensors.items()} == {"albert.x": [0, 1, 2]}
    assert mapped == ["[CH3:1][OH:2].Br>>[CH3:1]Br"]


def test_a_wheel_that_is_not_found_is_one_sentence(shelf):
    """The page shows it and goes on."""
    with pytest.raises(
        ValueError, match=r"expected pip .* rxnmapper==0\.4\.3, got"
    ) as e:
        reactions.fetch_wheel()
    assert "\n" not in str(e.value)
    assert kept(shelf) == []


def test_another_wheel_is_not_kept(shelf):
    """Of the right name, with another checksum: both are named."""
    wheel = made_wheel()
    (shelf / reactions.WHEEL).write_bytes(wheel)
    with pytest.raises(ValueError) as caught:
        reactions.fetch_wheel()
    message = str(caught.value)
    assert reactions.SHA256 in message
    assert hashlib.sha256(wheel).hexdigest() in message
    assert "\n" not in message
    assert kept(shelf) == []


def test_a_damaged_file_is_removed(shelf, monkeypatch):
    """So that the next call fetches it anew."""
    folder = shelf.parent / "data"
    folder.mkdir()
    (folder / reactions.WHEEL).write_bytes(b"half a wheel")
    monkeypatch.setattr(reactions.subprocess, "run", refuse)
    with pytest.raises(ValueError, match="is removed: expected checksum"):
        reactions.fetch_wheel()
    assert kept(shelf) == []


# Reactions as text

MAPPED = "[CH3:2][C:7](=[O:3])[O-].[nH:4]1[cH:5]c[cH:6]1~[Na+].BrCl>>[O:3]=[CH:7]C"
TOKENS = [
    "C", "C", "(", "=", "O", ")", "[O-]", ".", "[nH]", "1", "c", "c", "c", "1", "~",
    "[Na+]", ".", "Br", "Cl", ">>", "O", "=", "C", "C",
]  # fmt: skip
NUMBERS = [2, 7, 0, 0, 3, 0, 0, 0, 4, 0, 5, 0, 6, 0, 0, 0, 0, 0, 0, 0, 3, 0, 7, 0]


def test_tokens_and_numbers_of_a_reaction():
    """Brackets that only held a number go; those of charges, and of [nH], stay."""
    tokens, numbers = reactions.read_reaction(MAPPED)
    assert tokens == TOKENS
    assert numbers.tolist() == NUMBERS
    again, none = reactions.read_reaction("".join(tokens))
    assert again == tokens
    assert not none.any()


def test_elements_of_tokens():
    """Of aromatic atoms, ions, isotopes and rings with two digits."""
    tokens = ["[13CH3]", "[nH]", "[Na+]", "[C@@H]", "[se]", "%10", "1", "Cl", "c", "=",
              ">>", ".", "[O-]", "s"]  # fmt: skip
    expected = ["C", "N", "Na", "C", "Se", "", "", "Cl", "C", "", "", "", "O", "S"]
    assert reactions.elements(tokens).tolist() == expected


def test_bad_reactions_are_refused():
    """With what was expected and what came."""
    for smiles in ("CC", "C>>C>>C"):
        with pytest.raises(ValueError, match=f"one >>, got '{smiles}'"):
            reactions.read_reaction(smiles)
    with pytest.raises(ValueError, match=r"vocabulary, got \['X', '!'\]"):
        reactions.encode(["C", "X", "!"], ["[CLS]", "[SEP]", "C"], 9)
    with pytest.raises(ValueError, match="at most 2 tokens, got 3"):
        reactions.encode(["C"] * 3, ["[CLS]", "[SEP]", "C"], 4)


def test_reactions_are_padded():
    """After [SEP], with -1."""
    found = reactions.encode(["C", "O"], ["O", "[CLS]", "C", "[SEP]"], 6)
    assert found.tolist() == [1, 2, 0, 3, -1, -1]


def test_the_atom_that_gets_most_weight_is_found():
    """Of atoms before the arrow only; with ``both``, weights back to it are added."""
    tokens = ["C", "=", "O", ">>", "O", ".", "C"]  # atoms 0 2 → 4 6, in maps 1 3 → 5 7
    maps = np.zeros((2, 9, 9))
    maps[:, 5, [2, 4, 5]] = 9  # a bond, the arrow, itself
    maps[:, 5, 3], maps[:, 5, 1], maps[:, 7, 1] = 0.4, 0.3, 0.2
    maps[1, 1, 5], maps[1, 3, 7] = 0.2, 0.1
    found, new = reactions.atom_map(maps, tokens)
    assert new.tolist() == [4, 6]
    assert found.tolist() == [[2, 0], [2, 0]]
    found, _ = reactions.atom_map(maps, tokens, both=True)
    assert found.tolist() == [[2, 0], [0, 0]]


# The real weights


@pytest.fixture(scope="module")
def real():
    """What the real wheel holds."""
    try:
        return reactions.read_wheel(reactions.fetch_wheel())
    except ValueError as error:
        pytest.skip(str(error))


def examples(real):
    """The first three reactions of the package's tests; and as tokens ``b s``."""
    read = [reactions.read_reaction(smiles) for smiles in real[3][:3]]
    return read, np.stack(
        [reactions.encode(tokens, real[1], 104) for tokens, _ in read]
    )


@cache
def loaded(side, sizes):
    return side.build("MaskedLM", **dict(sizes))


def mapper(side, real):
    """RXNMapper in a framework."""
    config, _, tensors, _ = real
    sizes = tuple(published_masked.arguments_of(config).items())
    from_arrays(model := loaded(side, sizes), published_masked.our_names(tensors))
    return model


@pytest.mark.slow
@on_both_sides
def test_one_head_maps_atoms_as_the_tool(side, real):
    """Head 5 of layer 10, of the three examples; the median head does not."""
    read, ids = examples(real)
    maps = as_numpy(mapper(side, real)(tokens_of(side, ids), return_maps=True)[1])
    alone, both, elements = [], [], []
    for i, (tokens, numbers) in enumerate(read):
        old, new = reactions.atom_map(maps[:, i], tokens)
        alone.append(numbers[old] == numbers[new])  # l h p
        kinds = reactions.elements(tokens)
        elements.append(kinds[old][10, 5] == kinds[new])
        old, _ = reactions.atom_map(maps[:, i], tokens, both=True)
        both.append((numbers[old] == numbers[new])[10, 5])
    alone = np.concatenate(alone, axis=-1)
    assert alone.shape == (12, 8, 59)
    assert alone[10, 5].sum() >= 56  # 57; two atoms that a symmetry swaps
    assert np.median(alone.mean(axis=-1)) < 0.2
    assert np.concatenate(elements).all()
    assert np.concatenate(both).sum() >= 58  # 59


@pytest.mark.slow
@on_both_sides
def test_masked_tokens_are_filled(side, real):
    """Each token of two reactions hidden alone: all 134."""
    ids, mask = examples(real)[1][:2, :84], real[1].index("[MASK]")
    rows = np.repeat(ids, (ids > mask).sum(axis=1), axis=0)  # special tokens are before
    hidden = np.concatenate([np.flatnonzero(row > mask) for row in ids])
    expected = rows[(each := np.arange(len(rows))), hidden]
    rows[each, hidden] = mask
    found = callable_of(side, mapper(side, real))(tokens_of(side, rows))
    found = as_numpy(found)[each, hidden].argmax(axis=-1)
    assert len(found) == 134
    np.testing.assert_array_equal(found, expected)


def test_logits_are_those_of_transformers(real):
    """Of the real weights, in both frameworks."""
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    theirs = transformers.AlbertForMaskedLM(transformers.AlbertConfig(**real[0])).eval()
    theirs.load_state_dict(real[2], strict=False)
    _, ids = examples(real)
    with torch.no_grad():
        given = whole(ids.clip(0)), whole(ids >= 0)
        expected = theirs(given[0], attention_mask=given[1]).logits.numpy()
    for side in (jax_side, torch_side):
        found = as_numpy(mapper(side, real)(tokens_of(side, ids), return_maps=True)[0])
        assert difference(found[ids >= 0], expected[ids >= 0]) < 1e-5
