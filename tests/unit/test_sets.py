"""Sets with an odd one: seeded, of any classes, drawn a whole epoch at a time."""

import re
from dataclasses import replace
from itertools import combinations

import hypothesis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.data import photos, sets
from helpers.engine.set_settings import Cifar100, Digits, Sets
from sides import run_python

UNEQUAL = np.repeat([0, 1, 2, 5], [7, 2, 11, 5])  # class 1 has two images
SMALL = replace(Digits(), n_train=25, batch_size=4, epochs=50, warmup=3, set_size=3)


def shuffled_labels(counts, seed=0):
    labels = np.repeat(list(counts), list(counts.values()))
    return np.random.default_rng(seed).permutation(labels)


counts = st.dictionaries(
    st.integers(0, 300), st.integers(4, 30), min_size=2, max_size=6
)


@given(counts, st.integers(3, 5), st.integers(1, 40), st.integers(0, 99))
def test_a_set_has_one_of_another_class_at_its_end(counts, set_size, b, seed):
    """All others are of one class; no image comes twice; the odd one is as asked."""
    labels = shuffled_labels(counts, seed)
    rng = np.random.default_rng(seed)
    odd = rng.integers(len(labels), size=b)
    rows = sets.draw_sets(labels, set_size, odd, rng)
    assert (rows.shape, rows.dtype) == ((b, set_size), np.int32)
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
    """The class of the others does not depend on how many images it has."""
    odd = np.zeros(6_000, int)  # of class 0
    rows = sets.draw_sets(UNEQUAL, 3, odd, np.random.default_rng(0))
    share = np.bincount(UNEQUAL[rows[:, 0]], minlength=6) / len(rows)
    np.testing.assert_allclose(share, [0, 1 / 3, 1 / 3, 0, 0, 1 / 3], atol=0.02)


def test_a_class_of_minimal_size_is_used():
    rows = sets.draw_sets(UNEQUAL, 3, np.zeros(50, int), np.random.default_rng(0))
    of_one = rows[UNEQUAL[rows[:, 0]] == 1]
    assert len(of_one)
    np.testing.assert_array_equal(np.unique(of_one[:, :2]), [7, 8])


def test_labels_may_be_any_whole_numbers():
    labels = np.array([-3] * 4 + [2**40] * 4)
    rows = sets.draw_sets(labels, 4, np.arange(8), np.random.default_rng(0))
    assert (labels[rows[:, :3]] != labels[:, None]).all()


BAD = {
    "two in a set": ({"set_size": 2}, "expected set_size of at least 3, two of them "
                     "alike, got 2"),
    "none in a set": ({"set_size": 0}, "expected set_size to be a whole number >= 1, "
                      "got 0"),
    "one class": ({"labels": [4, 4, 4, 4]}, "expected at least two classes, "
                  "got [4]"),
    "too few": ({"labels": [3] * 6 + [8] * 2, "set_size": 4},
                "class 8 has 2 elements, a set of 4 needs 3"),
    "no label": ({"labels": []}, "expected at least two classes, got []"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_impossible_sets_raise_an_error(case):
    options, message = BAD[case]
    options = {"labels": [0, 0, 0, 1, 1, 1], "set_size": 3, **options}
    labels, size = np.array(options["labels"], int), options["set_size"]
    odd = np.arange(min(len(labels), 1))
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        sets.draw_sets(labels, size, odd, np.random.default_rng())
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        sets.fixed(labels, size, 3, seed=0)


X, Y = np.ones((5, 2)), np.arange(5)
NAN = np.where(np.eye(5, 2, -3, dtype=bool), np.nan, X)
BAD_ARRAYS = {
    "one axis": ((X[:, 0], Y), "expected axes r i, got shape (5,)"),
    "one-hot": ((X, np.eye(5, dtype=int)), "expected axes r, got shape (5, 5)"),
    "fewer labels": ((X, Y[:4]), "axis 'r' (number 0 of 'r'): expected 5, got 4"),
    "more images": ((X, Y, np.zeros((6, 8))), "not empty, got [5, 6] examples"),
    "float labels": ((X, Y / 2), "whole numbers as labels, got float64, such as [0.0]"),
    "NaN": ((NAN, Y), "expected the features to be finite, got nan in example 3"),
    "too large": ((X * 1e39, Y), "the features to be finite, got inf in example 0"),
    "small class": ((np.ones((69, 2)), np.repeat([1, 2], [40, 29])),
                    "class 2 has 29 elements, three parts need at least 30"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_invalid_arrays_raise_an_error(case):
    arrays, message = BAD_ARRAYS[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        sets.split(*arrays)


def test_an_epoch_shows_every_image_once_as_the_odd_one():
    """But for those that do not fill a batch."""
    rows = sets.drawn(UNEQUAL, SMALL)(0)
    assert (rows.shape, rows.dtype) == ((6, 4, 3), np.int32)
    assert len(np.unique(rows[..., -1])) == 24


def test_every_visit_draws_new_sets():
    """With the same odd one, others stand beside it in the next epoch."""
    batches = sets.drawn(UNEQUAL, SMALL)
    first, second = (
        dict(zip(rows[..., -1].ravel(), rows.reshape(-1, 3), strict=True))
        for rows in (batches(0), batches(1))
    )
    both = set(first) & set(second)
    assert sum((first[odd] != second[odd]).any() for odd in both) > len(both) / 2


def test_every_epoch_draws_its_own_others():
    """At one place of the epoch: not the order of the odd ones alone is another."""
    batches = sets.drawn(UNEQUAL, SMALL)
    others = {batches(epoch)[0, 0, :-1].tobytes() for epoch in range(20)}
    assert len(others) > 10


def test_sets_follow_from_seed_and_epoch_alone():
    """Whichever epochs came before, and in another process, too."""
    forwards, backwards = sets.drawn(UNEQUAL, SMALL), sets.drawn(UNEQUAL, SMALL)
    there = [forwards(epoch) for epoch in range(4)]
    back = [backwards(epoch) for epoch in reversed(range(4))][::-1]
    np.testing.assert_array_equal(there, back)
    assert (there[0] != sets.drawn(UNEQUAL, replace(SMALL, seed=43))(0)).any()
    code = (
        "import numpy as np; from dataclasses import replace; "
        "from helpers.data import sets; "
        "from helpers.engine.set_settings import Digits; "
        "labels = np.repeat([0, 1, 2, 5], [7, 2, 11, 5]); "
        "sizes = dict(n_train=25, batch_size=4, epochs=50, warmup=3, set_size=3); "
        "print(sets.drawn(labels, replace(Digits(), **sizes))(3).tolist())"
    )
    assert run_python(code) == str(there[3].tolist())


def test_fixed_sets_are_always_the_same():
    """Each image is the odd one twice before one is it three times."""
    rows = sets.fixed(UNEQUAL, 3, 60, seed=1)
    np.testing.assert_array_equal(rows, sets.fixed(UNEQUAL, 3, 60, seed=1))
    assert (rows != sets.fixed(UNEQUAL, 3, 60, seed=2)).any()
    times = np.bincount(rows[:, -1], minlength=25)
    assert set(times) == {2, 3}
    assert times.sum() == 60
    few = [sets.fixed(UNEQUAL, 3, 5, seed)[:, -1] for seed in range(9)]
    assert len(np.unique(few)) > 15, "the odd ones are always of the same elements"


@hypothesis.settings(max_examples=20)
@given(
    st.lists(st.integers(sets.LEAST, 90), min_size=2, max_size=9), st.integers(0, 99)
)
def test_each_class_gives_its_share_to_each_part(counts, seed):
    """No element twice, none lost, and of each class two or more, as sets need."""
    labels = shuffled_labels(dict(enumerate(counts)), seed)
    rows = np.arange(len(labels))
    parts = sets.split(rows[:, None], labels, rows, seed=seed)
    together = np.concatenate([part.images for part in parts.values()])
    np.testing.assert_array_equal(np.sort(together), rows)
    for part, share in zip(parts.values(), (0.72, 0.08, 0.2), strict=True):
        np.testing.assert_array_equal(part.labels, labels[part.images])
        raw = (part.images - parts["train"].images.mean()) / parts["train"].images.std()
        np.testing.assert_allclose(part.features[:, 0], raw, atol=1e-5)
        found = np.bincount(part.labels, minlength=len(counts))
        assert found.min() >= 2
        np.testing.assert_allclose(found, share * np.array(counts), atol=2)
    again = sets.split(rows[:, None], labels, rows, seed=seed)["test"].images
    np.testing.assert_array_equal(again, parts["test"].images)
    other = sets.split(rows[:, None], labels, rows, seed=seed + 1)["test"].images
    assert set(other) != set(again)


def test_a_split_standardises_each_feature_by_the_training_part():
    """Whatever its unit; one that never changes becomes 0, and nothing becomes NaN."""
    rng, labels = np.random.default_rng(0), np.arange(400) % 4
    raw = rng.normal(size=(400, 3)) * [1e-3, 1, 1e4] + [5, 0, -7e4]
    parts = sets.split(np.c_[raw, np.ones(400)], labels, np.arange(400))
    train = raw[parts["train"].images]
    for part in parts.values():
        expected = (raw[part.images] - train.mean(axis=0)) / train.std(axis=0)
        assert part.features.dtype == np.float32
        np.testing.assert_allclose(part.features[:, :3], expected, atol=1e-3)
        np.testing.assert_array_equal(part.features[:, 3], 0)


@pytest.mark.slow
def test_your_own_data_need_a_few_lines():
    """scikit-learn's wines: two arrays, no image, three classes."""
    from sklearn.datasets import load_wine

    from helpers.torch import Predictor, build, evaluate, fit, odd_one_out

    features, labels = load_wine(return_X_y=True)
    parts = sets.split(features, labels)
    settings = Sets.for_data(parts, epochs=15)
    train, test = parts["train"], parts["test"]
    batches = sets.drawn(train.labels, settings)
    model = build(Predictor, seed=settings.seed, **settings.model)
    fit(model, odd_one_out, (train.features,), settings, batches=batches)
    x = test.features[sets.fixed(test.labels, settings.set_size, 500, seed=1)]
    accuracy = evaluate(model, odd_one_out, (x,))["accuracy"]

    from_mean = np.linalg.norm(x - x.mean(axis=1, keepdims=True), axis=-1)
    baseline = (from_mean.argmax(axis=-1) == settings.set_size - 1).mean()
    assert (settings.n_classes, settings.n_features, settings.set_size) == (3, 13, 5)
    assert accuracy > max(baseline, 0.9)


def test_settings_follow_from_the_data():
    """Sets as large as the smallest class of a part allows, and about 640 updates."""
    parts = sets.split(np.ones((4000, 7)), np.arange(4000) % 4)
    found = Sets.for_data(parts, m=32, dropout=0.3)
    assert (found.n_train, found.batch_size, found.set_size) == (2880, 64, 10)
    assert (found.m, found.dropout, found.updates) == (32, 0.3, 675)
    one = Sets.for_data(parts, batch_size=2880)
    assert one.updates == one.epochs == 640


def test_the_digits_are_those_of_scikit_learn():
    """Each once, in one of three parts; pictures, features, labels belong together."""
    from sklearn.datasets import load_digits

    parts, names = sets.load(Digits())
    assert names == list("0123456789")
    assert len(parts["train"]) == Digits().n_train
    found = load_digits()
    known = {
        row.tobytes(): label
        for row, label in zip(found.data, found.target, strict=True)
    }
    seen = []
    for part in parts.values():
        assert (part.features.dtype, part.images.dtype) == (np.float32, np.uint8)
        for row, label, image in zip(
            part.features, part.labels, part.images, strict=True
        ):
            grey = (row * 16).astype(np.float64)
            assert known[grey.tobytes()] == label
            np.testing.assert_allclose(image.ravel() / 255, row, atol=1 / 255)
            seen.append(grey.tobytes())
    assert sorted(seen) == sorted(row.tobytes() for row in found.data)


def test_centred_features_are_measured_by_the_training_part():
    """Mean 0 and size 1 there; the other part by the same numbers."""
    rng = np.random.default_rng(0)
    raw = {
        name: sets.Part(
            rng.gamma(2, 3, size=(n, 5)).astype(np.float32), np.arange(n), np.zeros(n)
        )
        for name, n in {"train": 400, "test": 50}.items()
    }
    found = sets.centred(raw)
    train, test = found["train"].features, found["test"].features
    assert train.dtype == test.dtype == np.float32
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(train.std(), 1, rtol=1e-5)
    mean = raw["train"].features.mean(axis=0)
    size = (raw["train"].features - mean).std()
    np.testing.assert_allclose(
        test, (raw["test"].features - mean) / size, rtol=1e-4, atol=1e-6
    )
    for name, part in found.items():
        assert part.labels is raw[name].labels and part.images is raw[name].images


def write_photos(name, per_class, features=False):
    """Prepared files of a source: photos of noise; features that tell the classes."""
    rng = np.random.default_rng(0)
    arrays = {"classes": np.array([f"class {i}" for i in range(len(per_class))])}
    rows = {}
    for part, share in {"train": 4, "test": 1}.items():
        labels = np.repeat(np.arange(len(per_class)), share * np.array(per_class))
        images = rng.integers(256, size=(len(labels), 32, 32, 3), dtype=np.uint8)
        arrays |= {f"{part}_images": images, f"{part}_labels": labels.astype(np.int32)}
        rows[part] = np.eye(512, dtype=np.float32)[labels] + 3
    photos.data_folder().mkdir(exist_ok=True)
    np.savez(photos.images_file(name), **arrays)
    if features:
        np.savez(photos.features_file(name), **rows)
    return arrays


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of one's own, whose files are prepared by ``write_photos``."""
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path / "data"))
    (tmp_path / "mine").mkdir()
    return str(tmp_path / "mine")


def test_photos_without_features_have_mean_colours(folder):
    """Centred ones, of 8 × 8 squares; a fifth of small classes is for validation."""
    arrays = write_photos(folder, [15, 15, 15, 20])
    parts, names = sets.of_photos(folder, seed=1)
    assert names == ["class 0", "class 1", "class 2", "class 3"]
    sizes = {name: np.bincount(part.labels).tolist() for name, part in parts.items()}
    assert sizes["test"] == [15, 15, 15, 20]
    assert sizes["validation"] == [12, 12, 12, 16]
    raw = sets.mean_colours(arrays["test_images"])
    square = arrays["test_images"][5, 4:8, 28:32, 2]  # the second row, the last column
    np.testing.assert_allclose(raw[5, (8 + 7) * 3 + 2], square.mean() / 255, rtol=1e-5)
    found = parts["test"].features
    steps = np.diff(raw, axis=0) / raw.std()
    assert found.shape == (65, 192)
    np.testing.assert_allclose(np.diff(found, axis=0), steps, rtol=0.05, atol=0.02)
    np.testing.assert_allclose(parts["train"].features.mean(axis=0), 0, atol=1e-5)


def test_photos_with_features_are_taken_by_them(folder):
    write_photos(folder, [26, 26], features=True)
    parts, _ = sets.of_photos(folder, seed=1)
    assert parts["test"].features.shape == (52, 512)
    sizes = {name: len(part) for name, part in parts.items()}
    assert sizes == {"train": 187, "validation": 21, "test": 52}  # a tenth


def test_cifar_100_is_never_taken_without_features(folder):
    """The page promises what they give."""
    write_photos("cifar100", [12] * 4)
    with pytest.raises(FileNotFoundError, match=r"no cifar100-resnet34\.npz"):
        sets.of_photos("cifar100", seed=1)


@pytest.mark.parametrize(
    ("per_class", "set_size", "n_unseen"),
    [([12, 14, 12, 12, 12, 12], 6, 2), ([25] * 4, 10, 2), ([25] * 10, 10, 3)],
)
def test_settings_of_photos_follow_from_them(folder, per_class, set_size, n_unseen):
    """All sets that the page draws can be drawn; nothing is promised."""
    write_photos(folder, per_class)
    settings = sets.settings_for(folder, "cpu")
    assert (settings.set_size, settings.n_unseen) == (set_size, n_unseen)
    assert (settings.n_features, settings.n_classes) == (192, len(per_class))
    assert (settings.least_accuracy, settings.least_gain) == (0, 0)
    assert settings.updates >= 640 and settings.epochs >= 2
    parts, _ = sets.load(settings)
    assert len(parts["train"]) == settings.n_train
    sets.drawn(parts["train"].labels, settings)(0)
    alike = settings.set_size + 1  # the last one is left out
    sets.fixed(parts["validation"].labels, alike, 50, seed=0)
    for half in sets.divided(parts["test"], 0.5, 0):
        sets.fixed(half.labels, alike, 50, seed=0)
    unseen = np.arange(len(per_class))[-n_unseen:]
    sets.fixed(parts["test"].only(unseen).labels, set_size, 50, seed=0)


@pytest.mark.parametrize(
    ("per_class", "end"),
    [([15] * 3, "got 3 classes, the smallest with 12 and 15: "),
     ([5, 12, 12, 12], "got 4 classes, the smallest with 4 and 5: ")],
)  # fmt: skip
def test_too_few_photos_are_one_clear_sentence(folder, per_class, end):
    write_photos(folder, per_class)
    message = (
        "sets of seen and of unseen classes need four classes or more, each with three "
        f"photos for validation and six for the test, {end}{folder}"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        sets.settings_for(folder, "cpu")


def test_photos_that_are_not_prepared_are_one_clear_sentence(folder):
    with pytest.raises(FileNotFoundError, match=r"no mine-\w+\.npz in .*: run `make"):
        sets.settings_for(folder, "cpu")
    with pytest.raises(
        ValueError, match="unknown data set 'imagenet': expected 'cifar"
    ):
        sets.settings_for("imagenet", "cpu")


def test_fewer_images_may_be_asked_for():
    """The first ones; the other parts stay as they are. More raise an error."""
    few, whole = (
        sets.load(replace(Digits(), n_train=n, warmup=50))[0] for n in (200, 1_293)
    )
    np.testing.assert_array_equal(few["train"].labels, whole["train"].labels[:200])
    np.testing.assert_array_equal(few["test"].features, whole["test"].features)
    message = (
        "expected digits to have 9999 images for training, 64 features and 10 classes, "
        f"got {Digits().n_train}, 64 and 10"
    )
    with pytest.raises(ValueError, match=message):
        sets.load(replace(Digits(), n_train=9999))
    with pytest.raises(ValueError, match=r"^expected n_train = 25 labels, got 24$"):
        sets.drawn(UNEQUAL[:-1], SMALL)


def test_the_settings_are_the_published_ones():
    """Of the University of Amsterdam's tutorial, for CIFAR-100."""
    assert Cifar100().model == {
        "n_inputs": 512, "m": 256, "n_outputs": 1, "n_blocks": 4, "n_heads": 4,
        "f": 512, "dropout": 0.1, "input_dropout": 0.1, "positions": "none",
        "norm_first": False,
    }  # fmt: skip
    found = Cifar100()
    assert (found.learning_rate, found.warmup, found.batch_size) == (5e-4, 100, 64)
    assert (found.epochs, found.max_grad_norm, found.set_size) == (100, 1, 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"set_size": 2}, "set_size of at least 3, two of them alike, got 2"),
        ({"n_unseen": 9}, "on each side, got n_unseen = 9 of n_classes = 10"),
        ({"n_unseen": 1}, "on each side, got n_unseen = 1 of n_classes = 10"),
        ({"m": 30}, "m = 30 does not split into 4 heads (30 % 4 = 2)"),
    ],
    ids=str,
)
def test_invalid_settings_raise_an_error(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        replace(Digits(), **change)
