"""The odd one out: sets of any classes, the loss of a set, and the page's functions."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.data import sets
from helpers.settings import Settings
from helpers.weights import as_numpy
from sides import (
    assert_close,
    definitions,
    draw,
    fill,
    on_both_sides,
    run_python,
)

PAGE = {side: definitions(f"anomaly_{side}") for side in ("jax", "torch")}
UNEQUAL = np.repeat([0, 1, 2, 5], [7, 2, 11, 5])  # class 1 has two elements
SMALL = Settings(n_train=25, batch_size=4, epochs=50, learning_rate=1e-3, warmup=3)
SIZES = {"n_blocks": 2, "n_heads": 2, "f": 7, "positions": "none"}
counts = st.dictionaries(st.integers(0, 300), st.integers(4, 30), min_size=2)


@given(counts, st.integers(3, 5), st.integers(0, 99))
def test_a_set_has_one_of_another_class_at_its_end(counts, set_size, seed):
    """All others are of one class; no element comes twice; the odd one is as asked."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(list(counts), list(counts.values())))
    odd = rng.integers(len(labels), size=17)
    rows = sets.draw_sets(labels, set_size, odd, rng)
    assert (rows.shape, rows.dtype) == ((17, set_size), np.int32)
    np.testing.assert_array_equal(rows[:, -1], odd)
    kinds = labels[rows]
    assert (kinds[:, :-1] == kinds[:, :1]).all()
    assert (kinds[:, -1] != kinds[:, 0]).all()
    assert (np.diff(np.sort(rows, axis=1)) > 0).all()


def test_every_choice_of_the_others_is_equally_likely():
    """Three of five: ten choices, a tenth of the draws each."""
    chosen = np.sort(sets.distinct(np.full(20_000, 5), 3, np.random.default_rng(0)))
    for three in combinations(range(5), 3):
        assert abs((chosen == three).all(axis=1).mean() - 0.1) < 0.01, three


def test_classes_are_equally_likely_whatever_their_size():
    """Also the smallest one that fills a set; never the class of the odd one."""
    odd = np.zeros(6_000, int)  # of class 0
    rows = sets.draw_sets(UNEQUAL, 3, odd, np.random.default_rng(0))
    share = np.bincount(UNEQUAL[rows[:, 0]], minlength=6) / len(rows)
    np.testing.assert_allclose(share, [0, 1 / 3, 1 / 3, 0, 0, 1 / 3], atol=0.02)


def test_an_epoch_shows_every_element_once_as_the_odd_one():
    """But for those that fill no batch; its sets are new in every epoch."""
    batches = sets.drawn(UNEQUAL, 3, SMALL)
    rows = batches(0)
    assert (rows.shape, rows.dtype) == ((6, 4, 3), np.int32)
    assert len(np.unique(rows[..., -1])) == 24
    others = {batches(epoch)[0, 0, :-1].tobytes() for epoch in range(20)}
    assert len(others) > 10


def test_every_visit_draws_new_sets():
    """With the same odd one, others stand beside it in the next epoch."""
    batches = sets.drawn(UNEQUAL, 3, SMALL)
    first, second = [
        dict(zip(rows[..., -1].ravel(), rows.reshape(-1, 3), strict=True))
        for rows in (batches(0), batches(1))
    ]
    both = set(first) & set(second)
    assert sum((first[odd] != second[odd]).any() for odd in both) > len(both) / 2


def test_sets_follow_from_seed_and_epoch_alone():
    """Whichever epochs came before, and in another process, too."""
    batches = sets.drawn(UNEQUAL, 3, SMALL)
    there = [batches(epoch) for epoch in range(4)]
    back = [batches(epoch) for epoch in reversed(range(4))][::-1]
    np.testing.assert_array_equal(there, back)
    assert (there[0] != sets.drawn(UNEQUAL, 3, replace(SMALL, seed=43))(0)).any()
    code = (
        "import numpy as np; from helpers.data import sets; "
        "from helpers.settings import Settings; "
        "labels = np.repeat([0, 1, 2, 5], [7, 2, 11, 5]); "
        "settings = Settings(n_train=25, batch_size=4, epochs=50, learning_rate=1); "
        "print(sets.drawn(labels, 3, settings)(3).tolist())"
    )
    assert run_python(code) == str(there[3].tolist())


def test_fixed_sets_are_always_the_same():
    """Each element is the odd one twice before one is it three times."""
    rows = sets.fixed(UNEQUAL, 3, 60, seed=1)
    np.testing.assert_array_equal(rows, sets.fixed(UNEQUAL, 3, 60, seed=1))
    assert (rows != sets.fixed(UNEQUAL, 3, 60, seed=2)).any()
    assert {*np.bincount(rows[:, -1], minlength=25)} == {2, 3}


def test_the_digits_are_those_of_scikit_learn():
    """Each once, in one of three parts; pictures, features, labels belong together."""
    from sklearn.datasets import load_digits

    found, (parts, names) = load_digits(), sets.digits(seed=42)
    assert names == list("0123456789")
    assert [len(part.labels) for part in parts.values()] == [1_293, 144, 360]
    rows = np.concatenate([16 * part.features for part in parts.values()])
    labels = np.concatenate([part.labels for part in parts.values()])
    images = np.concatenate([part.images for part in parts.values()])
    np.testing.assert_allclose(images.reshape(rows.shape) / 255, rows / 16, atol=0.002)
    ours = np.unique(np.c_[rows, labels], axis=0)
    theirs = np.unique(np.c_[found.data, found.target], axis=0)
    np.testing.assert_array_equal(ours, theirs)


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


def test_distances_do_not_show_which_class_an_element_is_of():
    """They stay when a set is moved, turned and scaled; their mean is 0."""
    distances, x = PAGE["torch"].distances, draw(3, 6, 4).astype(np.float64)
    turn = np.linalg.qr(draw(4, 4, seed=1).astype(np.float64))[0]
    found = distances(x)
    assert found.shape == (3, 6, 5)
    np.testing.assert_allclose(distances(7 * x @ turn + 3), found, atol=1e-9)
    np.testing.assert_allclose(found.mean(axis=(1, 2)), 0, atol=1e-9)
