"""The data of the tasks: nothing of validation or test is in the training.

``scripts/tasks.py`` hands the same task to both frameworks, so that a comparison of
them would not notice a leak.
"""

import numpy as np
import pytest

import tasks
from helpers.data import pictures, sets, text
from helpers.data.byte_pairs import BytePairs
from helpers.engine.weights import to_arrays

FEW = {"epochs": 2, "n_train": 200, "batch_size": 20, "warmup": 2}
LENGTH, N_TOKENS = 8, 110


@pytest.fixture
def own(tmp_path):
    """A text whose last tenth has other letters, and other frequent pairs."""
    path = tmp_path / "own.txt"
    words = np.random.default_rng(0).choice([*"abcdefg"], size=(6_000, 3))
    path.write_text(" ".join(map("".join, words)) + " xyz" * 666)
    return path


def language(path):
    return tasks.load("language", str(path), n_tokens=N_TOKENS, length=LENGTH, **FEW)


def test_byte_pairs_are_learned_from_the_training_text_alone(own):
    """They encode the test text, whatever characters only it has."""
    parts, data = text.load(own), language(own).data
    pairs = BytePairs.learn(parts["train"], N_TOKENS)
    assert set(pairs.decode(data["train"][0].ravel())) == set("abcdefg ")
    expected = text.windows(pairs.encode(parts["test"]), LENGTH)
    np.testing.assert_array_equal(data["test"][0], expected)
    own.write_text(own.read_text()[:-1] + "’")
    pairs = BytePairs.from_metadata((task := language(own)).notes)
    assert pairs.decode(task.data["test"][0].ravel()).count("’") <= 1
    assert "’" in pairs.numbers and len(pairs) == N_TOKENS


def test_an_epoch_of_a_text_of_your_own_is_one_pass_through_it(own, monkeypatch):
    """About 650 updates; what is given stays; the chapter's own text stays as it is."""
    monkeypatch.setenv("TEXT_FILE", str(own))
    found = tasks.load("language", n_tokens=N_TOKENS, length=LENGTH)
    n = len(BytePairs.from_metadata(found.notes).encode(text.load()["train"]))
    assert found.settings.n_train == n // LENGTH
    assert 650 <= found.settings.updates < 650 + found.settings.updates_per_epoch
    assert len(found.data["train"][0]) == found.settings.epochs * (n // LENGTH)
    few = tasks.load("language", n_tokens=N_TOKENS, epochs=1, n_train=160).settings
    assert (few.epochs, few.n_train, few.warmup) == (1, 160, 1)
    with pytest.raises(ValueError, match="m = 15 does not split into 4 heads"):
        tasks.load("language", "/no/such/text", m=15)


def test_sets_are_drawn_from_their_own_part():
    """For training, validation and test: every feature of a set."""
    task = tasks.load("anomaly", "digits")
    parts, _ = sets.load(task.settings)
    for name, (features,) in task.data.items():
        known = {row.tobytes() for row in parts[name].features}
        found = {row.tobytes() for row in features.reshape(-1, features.shape[-1])}
        assert found <= known, f"{name} has elements of another part"
    chosen = task.data["train"][0][task.batches(0)]
    assert chosen.shape == (20, 64, 10, 64)


EXAMPLES = {  # a task without a source, and what must not come twice
    "reverse": lambda inputs, labels: labels,
    "translation": lambda source, target: target,
    "vision": lambda images, labels: images,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_example_is_in_two_parts(name):
    data = tasks.load(name, **FEW).data
    assert set(data) == {"train", "validation", "test"}
    seen = {
        part: {row.tobytes() for row in EXAMPLES[name](*arrays)}
        for part, arrays in data.items()
    }
    assert not seen["train"] & seen["validation"]
    assert not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]


def test_pictures_are_those_of_their_part():
    """With a smaller ``n_train`` the first ones; the other parts stay as they are."""
    data = tasks.load("vision", **FEW).data
    parts, _ = pictures.load("digits", seed=42)
    for name, pair in parts.items():
        rows = slice(200 if name == "train" else None)
        for found, expected in zip(data[name], pair, strict=True):
            np.testing.assert_array_equal(found, expected[rows])


@pytest.mark.parametrize("side", ["jax", "torch"])
def test_fit_gets_the_validation_data_batches_and_moves_of_the_task(side):
    """Digits are turned and shifted, but never mirrored; sets are not moved."""
    task = tasks.load("vision", **FEW)
    options = task.options(side)
    assert options["validation"] is task.data["validation"]
    moves = options["augment"].keywords
    assert moves["degrees"] > 0 and moves["pixels"] > 0 and not moves.get("flip")
    task = tasks.load("anomaly", "digits")
    options = task.options(side)
    assert options["validation"] is task.data["validation"]
    assert options["batches"] is task.batches and options["augment"] is None


@pytest.mark.parametrize("side", ["jax", "torch"])
def test_the_seed_of_a_task_is_that_of_its_model(side):
    starts = [
        to_arrays(tasks.load("reverse", seed=seed, **FEW).build(side))["embed.weight"]
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert (starts[0] != starts[2]).any(), "another seed, the same weights"
