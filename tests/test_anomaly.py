"""The odd one out: sets of any classes, the loss of a set, and the page's functions."""

from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.linear_model import LogisticRegression

from helpers.data import sets
from helpers.settings import Settings
from helpers.weights import as_numpy
from sides import (
    assert_close,
    definitions,
    draw,
    fill,
    on_both_sides,
)

PAGE = {side: definitions(f"anomaly_{side}") for side in ("jax", "torch")}
SMALL = Settings(n_train=25, batch_size=4, epochs=50, learning_rate=1e-3, warmup=3)
SIZES = {"n_blocks": 2, "n_heads": 2, "f": 7, "positions": "none"}
counts = st.dictionaries(st.integers(0, 300), st.integers(9, 30), min_size=2)


@given(counts, st.integers(0, 99))
def test_a_set_has_one_of_another_class_at_its_end(counts, seed):
    """All others are of one class; no element comes twice; the odd one is as asked."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(list(counts), list(counts.values())))
    odd = rng.integers(len(labels), size=17)
    rows = PAGE["torch"].draw_sets(labels, odd, rng)
    assert rows.shape == (17, 10)
    np.testing.assert_array_equal(rows[:, -1], odd)
    kinds = labels[rows]
    assert (kinds[:, :-1] == kinds[:, :1]).all()
    assert (kinds[:, -1] != kinds[:, 0]).all()
    assert (np.diff(np.sort(rows, axis=1)) > 0).all()


def test_classes_are_equally_likely_whatever_their_size():
    """Also the smallest one that fills a set; never the class of the odd one."""
    labels, odd = np.repeat([0, 1, 5], [20, 9, 30]), np.zeros(2_000, int)  # of class 0
    rows = PAGE["torch"].draw_sets(labels, odd, np.random.default_rng(0))
    share = np.bincount(labels[rows[:, 0]], minlength=6) / len(rows)
    np.testing.assert_allclose(share, [0, 1 / 2, 0, 0, 0, 1 / 2], atol=0.04)


def test_an_epoch_shows_every_element_at_most_once_as_the_odd_one():
    """But for those that fill no batch; its sets are new in every epoch."""
    part = sets.Part(np.zeros((25, 1)), np.repeat([0, 1], [12, 13]))
    batches = PAGE["torch"].sets_of(part, SMALL)
    rows = batches(0)
    assert rows.shape == (6, 4, 10)
    assert len(np.unique(rows[..., -1])) == 24
    assert (rows != batches(1)).any()
    np.testing.assert_array_equal(rows, batches(0))
    other = PAGE["torch"].sets_of(part, replace(SMALL, seed=43))
    assert (rows != other(0)).any()


def test_fixed_sets_are_always_the_same():
    """Each element is the odd one twice before one is it three times."""
    part = sets.Part(np.arange(25.0)[:, None], np.repeat([0, 1], [12, 13]))
    rows, x = PAGE["torch"].fixed_sets(part, 60, seed=1)
    np.testing.assert_array_equal(rows, PAGE["torch"].fixed_sets(part, 60, seed=1)[0])
    assert (rows != PAGE["torch"].fixed_sets(part, 60, seed=2)[0]).any()
    assert {*np.bincount(rows[:, -1], minlength=25)} == {2, 3}
    np.testing.assert_array_equal(x[..., 0], rows)


def test_the_shipped_photos_are_whole():
    """550 and 100 of each class; features on one scale; JPEGs of the test photos."""
    path = Path(sets.__file__).with_name("photos.npz")
    assert path.stat().st_size < 2**21
    found = np.load(path)
    for part, n in {"train": 550, "test": 100}.items():
        assert np.bincount(found[f"{part}_labels"]).tolist() == [n] * 10
        assert found[part].shape == (10 * n, 64)
    x = found["train"].astype(np.float32)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-3)
    assert x.std() == pytest.approx(1, rel=1e-3)
    files = np.split(found["photos"], found["ends"][:-1])
    assert {Image.open(BytesIO(file)).size for file in files} == {(32, 32)}
    assert len(files) == 1_000
    # a linear classifier finds the classes: photos, features and labels belong together
    model = LogisticRegression(C=0.01, max_iter=500).fit(x, found["train_labels"])
    assert model.score(found["test"], found["test_labels"]) > 0.65


def test_prepared_photos_are_scaled_by_their_training_part(tmp_path, monkeypatch):
    """Mean 0 and one deviation there; a tenth of each class is for validation."""
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path))
    rng, arrays, features = np.random.default_rng(0), {"classes": ["owl", "fox"]}, {}
    for part, n in (("train", 200), ("test", 40)):
        arrays[f"{part}_images"] = rng.integers(256, size=(n, 32, 32, 3), dtype="uint8")
        arrays[f"{part}_labels"] = np.arange(n, dtype=np.int32) % 2
        noise = rng.gamma(2, 3, size=(n, 512)).astype(np.float32)
        features[part] = noise + arrays[f"{part}_images"].mean(axis=(1, 2, 3))[:, None]
    np.savez(tmp_path / "birds.npz", **arrays)
    np.savez(tmp_path / "birds-resnet34.npz", **features)
    parts, names = sets.photos("~/birds", seed=1)
    assert names == ["owl", "fox"]
    counts = [np.bincount(part.labels).tolist() for part in parts.values()]
    assert counts == [[90, 90], [10, 10], [20, 20]]
    train = parts["train"].features
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-5)
    assert train.std() == pytest.approx(1, rel=1e-4)
    for part in parts.values():  # photos and features still belong together
        brightness = part.images.mean(axis=(1, 2, 3))
        assert np.corrcoef(part.features.mean(axis=1), brightness)[0, 1] > 0.9
    steps = np.diff(features["test"], axis=0) / np.diff(parts["test"].features, axis=0)
    np.testing.assert_allclose(np.median(steps), features["train"].std(), rtol=0.3)
    (tmp_path / "birds").mkdir()
    own = {"digest": sets.digest(tmp_path / "birds")}
    np.savez(tmp_path / "birds.npz", **arrays, **own)
    sets.photos(tmp_path / "birds", seed=1)
    (tmp_path / "birds" / "new.jpg").touch()  # or changed, or of another folder
    with pytest.raises(ValueError, match="has changed: make data PHOTOS="):
        sets.photos(tmp_path / "birds", seed=1)


@on_both_sides
def test_the_odd_one_is_the_class_of_a_set(side):
    """Cross-entropy over the elements, worked out by hand; the last one is right."""
    x, model = draw(60, 5, 7), side.build("Predictor", 7, 4, 1, **SIZES)
    fill(model)
    logits = side.models.attention_maps(model, side.tensor(x))[0]
    p = np.exp(as_numpy(logits).astype(np.float64)[..., 0])
    p /= p.sum(axis=1, keepdims=True)
    found = side.models.evaluate(model, PAGE[side.name].odd_one_out, (x,))
    expected = -np.log(p[:, -1]).mean(), (p.argmax(axis=1) == 4).mean()
    np.testing.assert_allclose([*found.values()], expected, rtol=1e-5)
    chosen = np.bincount(p.argmax(axis=1), minlength=5).tolist()
    assert 0 < expected[1] < 1
    assert chosen.count(chosen[4]) == 1, "another place would give the same accuracy"


@on_both_sides
def test_shuffling_a_set_shuffles_its_outputs(side):
    """With any weights; and hiding all others from an element isolates it."""
    model, x = side.build("Predictor", 7, 4, 1, **SIZES), draw(3, 5, 7)
    fill(model)
    order = np.random.default_rng(3).permutation(5)
    out = as_numpy(side.models.attention_maps(model, side.tensor(x))[0])
    shuffled = side.models.attention_maps(model, side.tensor(x[:, order]))[0]
    assert_close(shuffled, out[:, order])
    mask = side.mask(np.eye(5, dtype=bool))
    alone = side.models.attention_maps(model, side.tensor(x[:, :1]))[0]
    masked = as_numpy(side.models.attention_maps(model, side.tensor(x), mask)[0])
    assert_close(alone, masked[:, :1])
