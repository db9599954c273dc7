"""The chapter on your own data: the classifier of padded sequences, and its data."""

import numpy as np
import pandas as pd
import pytest

from helpers import reference
from helpers.data import lines
from helpers.data.text import PRETRAINED
from helpers.weights import as_numpy, to_arrays
from sides import (
    assert_close,
    definitions,
    draw,
    fill,
    jax_side,
    on_both_sides,
    torch_side,
)

B, S, LONGEST, N_INPUTS, L, H, M, F, C = 3, 7, 11, 5, 2, 3, 39, 17, 13
REAL = np.arange(S) < np.array([[7], [4], [1]])  # b s
REAL[0, 2] = False  # a gap
X = draw(B, S, N_INPUTS)
VOWELS = PRETRAINED.with_name("japanese_vowels.npz")


def classifier(side, **options):
    """A small classifier and its parameters, each with a value of its own."""
    sizes = {"n_blocks": L, "n_heads": H, "f": F, "max_length": LONGEST, **options}
    model = side.build("SequenceClassifier", N_INPUTS, M, C, **sizes)
    return model, fill(model)


def outputs(side, model, x=X, real=REAL):
    """Outputs ``b c`` as a NumPy array."""
    return as_numpy(model(side.tensor(x), side.mask(real)))


@on_both_sides
def test_the_classifier_equals_the_reference(side):
    model, params = classifier(side)
    x = reference.dense(X.astype(np.float64), params, "embed")
    x = x + params["positions.table"][:S]
    options = {"activation": "gelu", "norm_first": True}
    inner = reference.inside(params, "encoder.")
    x, _ = reference.encoder(x, inner, L, H, REAL[:, None, None], **options)
    means = np.stack([row[real].mean(0) for row, real in zip(x, REAL, strict=True)])
    expected = reference.dense(means, params, "output")
    assert expected.shape == (B, C)
    assert_close(outputs(side, model), expected)


def test_twins_of_the_classifier_agree():
    """They have the same parameters, by the names and shapes that seed them."""
    jax_outputs = outputs(jax_side, classifier(jax_side)[0])
    assert_close(outputs(torch_side, classifier(torch_side)[0]), jax_outputs)


@on_both_sides
def test_padding_changes_nothing(side):
    """Neither other numbers there, nor more of it, nor another sequence without any."""
    model, _ = classifier(side)
    expected = outputs(side, model)
    other = np.where(REAL[..., None], X, 1e3).astype(np.float32)
    np.testing.assert_array_equal(outputs(side, model, other), expected)
    longer = np.pad(X, [(0, 0), (0, 3), (0, 0)]), np.pad(REAL, [(0, 0), (0, 3)])
    assert_close(outputs(side, model, *longer), expected)
    empty = REAL & np.array([[True], [False], [True]])
    found = outputs(side, model, real=empty)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], expected[[0, 2]])


@on_both_sides
def test_every_weight_of_the_classifier_has_a_gradient(side):
    model, _ = classifier(side)
    x, real = side.tensor(X), side.mask(REAL)
    grads = side.grads(model, lambda out: (out**2).sum(), x, real)
    assert not grads.pop("input")[~REAL].any()
    assert not grads["positions.table"][S:].any()
    assert {*grads} == {*to_arrays(model)}
    for name, gradient in grads.items():
        assert np.abs(gradient).max() > 1e-4, name


@on_both_sides
def test_dropout_is_an_option(side):
    rates = side.rates(classifier(side, dropout=0.25)[0]).values()
    assert {*rates} == {0.25}
    assert {*side.rates(classifier(side)[0]).values()} == {0.0}


@pytest.mark.parametrize("page", ["data_jax", "data_torch"])
def test_rows_of_a_table_become_tokens(page):
    """A number stands in the place of its column; an empty cell is hidden."""
    rows = np.array([[3.0, np.nan], [5.0, 8.0]])
    scale = {"mean": np.array([4.0, 6.0]), "deviation": np.array([1.0, 4.0])}
    tokens, known = definitions(page).from_table(rows, **scale)
    np.testing.assert_array_equal(known, [[True, False], [True, True]])
    expected = [[[-1, 0], [0, 0]], [[1, 0], [0, 0.5]]]
    np.testing.assert_array_equal(tokens, expected)


TABLE = (
    "id;Größe; note ;truth;when;empty;Unnamed: 9\n1;1e3;12 Main St;TRUE;?;;0\n\n"
    "2; -.5 ;#late;false;n/a;;1\n3;;ok\n"
)


@on_both_sides
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_a_table_of_a_spreadsheet_becomes_numbers(side, encoding, tmp_path, capsys):
    """With its gaps; columns of words, without numbers and of row numbers are named."""
    page, file = definitions(f"data_{side.name}"), tmp_path / "own.csv"
    for mark, first in ((";", ""), ("\t", "sep=\t\n"), ("|", "")):
        lines = (first + TABLE.replace(";", mark)).replace("\n", "\r\n")
        file.write_bytes(lines.encode(encoding))
        found = page.numeric(page.read_csv(file))
        assert [*found] == ["id", "Größe", "truth"] and [*found.index] == [2, 4, 5]
        expected = [[1, 1000, 1], [2, -0.5, 0], [3, np.nan, np.nan]]
        np.testing.assert_array_equal(found, expected)
        said = capsys.readouterr().out
        assert all(f"left out: column {n!r}" in said for n in ("note", "when", "empty"))
    file.write_text('"a, b","c"\n"1","2"\n#3,4\n')  # a row may begin with #
    with pytest.raises(ValueError, match=r"row 3, column 'a, b': .* got '#3'"):
        page.numeric(page.read_csv(file))


LABELS = {"a b": ["b", "a", "b"], "1 3": [3, 1, 3], "-1 1": [1, -1, 1]}
LABELS |= {"False True": [True, False, True], "1.0 3.0": [3.0, 1.0, 3.0]}
LABELS |= {"9.0 10.0": ["10", "9", "10.0"], "z ü": np.array(["ü", "z", "ü"])}
LABELS |= {
    "x y": pd.Categorical(["y", "x", "y"]),
    "4 5": pd.Series([5, 4, 5], [7, 8, 9]),
}


@on_both_sides
@pytest.mark.parametrize("names", LABELS)
def test_labels_of_any_kind_become_numbers_from_0(side, names):
    codes, found = definitions(f"data_{side.name}").class_numbers(LABELS[names])
    assert codes.tolist() == [1, 0, 1] and " ".join(map(str, found)) == names


@on_both_sides
def test_texts_become_one_hot_vectors_and_padding(side):
    x, real = side.models.from_texts(["ab", "", "é" + 9 * "z"], 5)
    assert x.shape == (3, 5, 128) and x.dtype == np.float32
    np.testing.assert_array_equal(real.sum(1), [2, 0, 5])
    assert x[real].argmax(1).tolist() == [*b"ab?zzzz"]
    np.testing.assert_array_equal(x.sum(-1), real)


def test_every_language_has_lines_of_other_files_for_the_test():
    texts, labels, test_texts, test_labels = lines.languages(200, 61)
    np.testing.assert_array_equal(np.bincount(labels), len(lines.LANGUAGES) * [200])
    counts = np.bincount(test_labels)
    assert 40 < counts.min() <= counts.max() == 61
    assert not set(texts) & set(test_texts) and len(set(texts)) == len(texts)
    assert (np.diff(labels) != 0).sum() > 400, "they are in random order"
    for text in (*texts, *test_texts):
        assert 8 <= len(text) <= 40 and text.isascii() and text == text.lstrip()
    again = lines.languages(200, 61)[0]
    np.testing.assert_array_equal(again, texts)


def test_the_utterances_are_those_of_the_source():
    """270 and 370 of nine speakers, 7 to 29 frames; sums of the published numbers."""
    parts = definitions("data_torch").load_vowels(VOWELS)
    counts = {"train": 9 * [30], "test": [31, 35, 88, 44, 29, 24, 40, 50, 29]}
    for name, (frames, real, speakers) in parts.items():
        np.testing.assert_array_equal(np.bincount(speakers), counts[name])
        assert frames.shape == (*real.shape, 12) == (len(speakers), 29, 12)
        assert (real[:, 1:] <= real[:, :-1]).all(), "padding is at the end"
        assert not frames[~real].any() and np.abs(frames[real]).min(1).max() > 0
    lengths = [part[1].sum(1) for part in parts.values()]
    found = [(n.min(), n.max(), n.sum()) for n in lengths]
    assert found == [(7, 26, 4274), (7, 29, 5687)]
    first = [1.860936, -0.207383, 0.261557]  # of the first frame, in the source
    np.testing.assert_allclose(parts["train"][0][0, 0, :3], first, atol=5.1e-5)
    with np.load(VOWELS) as file:
        assert "CC BY 4.0" in str(file["source"])
