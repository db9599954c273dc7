"""The chapter on your own data: the classifier of padded sequences, and its data."""

from pathlib import Path

import numpy as np
import pytest

from helpers import reference
from helpers.data import lines, vowels
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import to_arrays
from sides import draw, fill, jax_side, on_both_sides, torch_side

B, S, LONGEST, I, L, H, M, F, C = 3, 7, 11, 5, 2, 3, 39, 17, 13  # noqa: E741
REAL = np.arange(S) < np.array([[7], [4], [1]])  # b s
REAL[0, 2] = False  # a gap
X = draw(B, S, I).astype(np.float32)


def classifier(side, **options):
    """A small classifier and its parameters, each with a value of its own."""
    sizes = {"n_blocks": L, "n_heads": H, "f": F, "max_length": LONGEST, **options}
    model = side.build("SequenceClassifier", I, M, C, **sizes)
    return model, fill(model)


def outputs(side, model, x=X, real=REAL):
    """Outputs ``b c`` as a NumPy array."""
    return as_numpy(model(side.tensor(x), side.mask(real)))


# The classifier


@on_both_sides
def test_the_classifier_is_that_of_the_formulas(side):
    model, params = classifier(side)
    x = reference.dense(X.astype(np.float64), params, "embed")
    x = x + params["positions.table"][:S]
    options = {"activation": "gelu", "norm_first": True}
    inner = reference.inside(params, "encoder.")
    x, _ = reference.encoder(x, inner, L, H, REAL[:, None, None], **options)
    means = np.stack([row[real].mean(0) for row, real in zip(x, REAL, strict=True)])
    expected = reference.dense(means, params, "output")
    found = outputs(side, model)
    assert found.shape == (B, C)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


def test_twins_of_the_classifier_agree():
    pair = [classifier(side) for side in (jax_side, torch_side)]
    shapes = [{name: x.shape for name, x in params.items()} for _, params in pair]
    assert shapes[0] == shapes[1] and "positions.table" in shapes[0]
    found = [
        outputs(side, model)
        for side, (model, _) in zip((jax_side, torch_side), pair, strict=True)
    ]
    np.testing.assert_allclose(*found, atol=1e-5, rtol=0)


@on_both_sides
def test_what_is_not_real_changes_no_output(side):
    """Neither other numbers there, nor more padding at the end."""
    model, _ = classifier(side)
    expected = outputs(side, model)
    other = np.where(REAL[..., None], X, 1e3).astype(np.float32)
    np.testing.assert_array_equal(outputs(side, model, other), expected)
    longer = np.pad(X, [(0, 0), (0, 3), (0, 0)])
    more = np.pad(REAL, [(0, 0), (0, 3)])
    found = outputs(side, model, longer, more)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


@on_both_sides
def test_a_sequence_without_a_real_position_is_nan_and_no_other(side):
    """As the page says: a mean over nothing."""
    model, _ = classifier(side)
    empty = REAL & np.array([[True], [False], [True]])
    found = outputs(side, model, real=empty)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], outputs(side, model)[[0, 2]])


@on_both_sides
def test_every_weight_of_the_classifier_has_a_gradient(side):
    model, _ = classifier(side)
    given = side.tensor(X), side.mask(REAL)
    grads, _ = side.model_grads(model, lambda out: (out**2).sum(), *given)
    assert {*grads} == {*to_arrays(model)}
    assert not grads["positions.table"][S:].any()
    for name, gradient in grads.items():
        assert np.abs(gradient).max() > 1e-4, name


@on_both_sides
def test_a_new_classifier_drops_on_request_alone(side):
    rates = {*side.rates(classifier(side, dropout=0.25)[0]).values()}
    assert rates == {0.25}
    assert {*side.rates(classifier(side)[0]).values()} == {0.0}


@on_both_sides
@pytest.mark.parametrize(
    ("x", "real", "message"),
    [
        (X[..., :3], REAL, "expected an input b s 5"),
        (np.tile(X, (1, 2, 1)), np.tile(REAL, 2), "14 positions, .* max_length = 11"),
        (X, REAL[:, :4], "mask"),
    ],
    ids=["features", "length", "mask"],
)
def test_what_does_not_fit_the_classifier_raises(side, x, real, message):
    model, _ = classifier(side)
    with pytest.raises(ValueError, match=message):
        outputs(side, model, x, real)


@on_both_sides
def test_a_mask_of_numbers_raises(side):
    with pytest.raises(TypeError, match=r"dtype (torch\.)?bool"):
        outputs(side, classifier(side)[0], real=REAL.astype(np.float32))


# Lines of four languages


def test_every_language_has_lines_of_other_files_for_the_test():
    texts, labels, test_texts, test_labels = lines.languages(200, 61)
    assert lines.LANGUAGES == ("Python", "C", "JavaScript", "English")
    np.testing.assert_array_equal(np.bincount(labels), 4 * [200])
    assert (np.bincount(test_labels) > 40).all()
    assert not set(texts) & set(test_texts)
    for text in (*texts, *test_texts):
        assert 8 <= len(text) <= 40 and text.isascii() and text == text.lstrip()
    for label, name in enumerate(lines.LANGUAGES):
        files = lines.files_of(name)
        first, others = (
            set(lines.lines_of(part)) for part in np.split(files, [len(files) * 4 // 5])
        )
        assert {*texts[labels == label]} <= first
        assert {*test_texts[test_labels == label]} <= others


def test_the_lines_are_the_same_every_time_and_in_random_order():
    pair = [lines.languages(50, 20) for _ in range(2)]
    for a, b in zip(*pair, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (np.diff(pair[0][1]) != 0).sum() > 100


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (5.0, 5)])
def test_numbers_of_lines_are_whole_and_positive(sizes):
    with pytest.raises(ValueError, match="expected n_t"):
        lines.languages(*sizes)


def test_a_language_without_files_is_named(monkeypatch):
    monkeypatch.setitem(lines.SOURCES, "C", ("numpy", "*.cobol"))
    with pytest.raises(ValueError, match=r"two files or more for C.*got 0 at"):
        lines.languages()


def test_lines_are_stripped_cut_and_counted_once(tmp_path):
    text = "  x = 1\n\tfor row in rows:  \nfor row in rows:\nGrüße aus Köln\n"
    text += 50 * "a"
    (path := tmp_path / "a.py").write_text(text, "utf-8")
    assert lines.lines_of([path, path]) == [40 * "a", "for row in rows:"]
    with pytest.raises(ValueError, match="cannot read the text"):
        lines.lines_of([Path(tmp_path, "none")])


def test_texts_become_one_hot_vectors_and_padding():
    x, real = lines.from_texts(["ab", "", "é" + 9 * "z"], 5)
    assert x.shape == (3, 5, 128) and x.dtype == np.float32
    np.testing.assert_array_equal(real.sum(1), [2, 0, 5])
    assert x[real].argmax(1).tolist() == [*b"ab?zzzz"]
    np.testing.assert_array_equal(x.sum(-1), real)


# Japanese Vowels


def test_the_utterances_are_those_of_the_source():
    """270 and 370 of nine speakers, 7 to 29 frames; sums of the published numbers."""
    parts = vowels.load()
    counts = {"train": 9 * [30], "test": [31, 35, 88, 44, 29, 24, 40, 50, 29]}
    for name, (frames, real, speakers) in parts.items():
        np.testing.assert_array_equal(np.bincount(speakers), counts[name])
        assert (
            frames.shape == (len(speakers), 29, 12) and real.shape == frames.shape[:2]
        )
        assert (frames.dtype, real.dtype, speakers.dtype) == ("f4", bool, "i4")
        assert (real[:, 1:] <= real[:, :-1]).all(), "padding is at the end"
        assert not frames[~real].any() and np.abs(frames[real]).min(1).max() > 0
    lengths = [part[1].sum(1) for part in parts.values()]
    assert [(n.min(), n.max(), n.sum()) for n in lengths] == [
        (7, 26, 4274),
        (7, 29, 5687),
    ]
    first = [1.860936, -0.207383, 0.261557]  # of the first frame, in the source
    np.testing.assert_allclose(parts["train"][0][0, 0, :3], first, atol=5.1e-5)


def test_the_file_of_the_utterances_names_source_and_licence():
    with np.load(vowels.FILE) as file:
        source = str(file["source"])
    assert "Kudo" in source and "CC BY 4.0" in source and "10.24432/C5NS47" in source
    assert vowels.FILE.stat().st_size < 300_000
