"""The data of the reverse task, and batches that follow from seed and epoch alone."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.data.sequences import (
    draw_uniforms,
    one_hot,
    reverse_data,
    shuffled,
    symbols,
)
from helpers.engine.settings import Reverse
from sides import run_python

SMALL = replace(
    Reverse(), n_train=70, batch_size=8, epochs=7, n_validation=30, n_test=20, length=5
)


def test_labels_are_the_sequences_from_their_end():
    """Inputs are the same symbols as rows with a single 1."""
    data = reverse_data(SMALL)
    sizes = {"train": 70, "validation": 30, "test": 20}
    assert {name: len(x) for name, (x, _) in data.items()} == sizes
    for x, labels in data.values():
        assert x.shape == (len(x), 5, 10)
        assert labels.shape == (len(x), 5)
        assert (x.dtype, labels.dtype) == (np.float32, np.int32)
        assert x.flags.c_contiguous
        assert labels.flags.c_contiguous
        assert set(np.unique(x)) == {0, 1}
        assert (x.sum(-1) == 1).all()
        np.testing.assert_array_equal(x.argmax(-1), labels[:, ::-1])


@given(st.integers(1, 40), st.integers(1, 12))
def test_labels_of_any_length_are_reversed(length, n_symbols):
    """Place ``i`` of the labels is place ``length - 1 - i`` of the inputs."""
    sizes = {"length": length, "n_symbols": n_symbols, "epochs": 60}
    for x, labels in reverse_data(replace(SMALL, **sizes)).values():
        for i in range(length):
            np.testing.assert_array_equal(x[:, length - 1 - i].argmax(-1), labels[:, i])


def test_the_three_parts_are_different_sequences():
    """At full length hardly any sequence comes twice: none is in two parts."""
    data = reverse_data(replace(Reverse(), n_train=2_000, n_test=2_000))
    parts = [{row.tobytes() for row in labels} for _, labels in data.values()]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


def test_data_follow_from_the_seed():
    same, other = reverse_data(SMALL), reverse_data(replace(SMALL, seed=7))
    for name, (x, labels) in reverse_data(SMALL).items():
        np.testing.assert_array_equal(x, same[name][0])
        np.testing.assert_array_equal(labels, same[name][1])
        assert (labels != other[name][1]).any()


def test_every_symbol_comes_about_equally_often():
    x = symbols(1_000, 16, 10, seed=0)
    assert (x.shape, x.dtype) == ((1_000, 16), np.int32)
    share = np.bincount(x.ravel(), minlength=10) / x.size
    np.testing.assert_allclose(share, 0.1, atol=0.01)
    np.testing.assert_array_equal(one_hot(x, 10).argmax(-1), x)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 9), st.integers(0, 99))
def test_an_epoch_takes_no_example_twice(n_train, batch, epoch, seed):
    """Whole batches; what does not fill one is left out."""
    batch = min(batch, n_train)
    sizes = {
        "n_train": n_train,
        "batch_size": batch,
        "epochs": 2 * n_train,
        "warmup": 1,
    }
    index = shuffled(replace(SMALL, seed=seed, **sizes))(epoch)
    assert index.shape == (n_train // batch, batch)
    assert index.dtype == np.int32
    assert index.flags.c_contiguous
    assert len(np.unique(index)) == index.size
    assert 0 <= index.min() <= index.max() < n_train


def test_batches_follow_from_seed_and_epoch_alone():
    """Whichever epochs came before, and in another process: needed to resume."""
    forwards, backwards = shuffled(SMALL), shuffled(SMALL)
    there = [forwards(epoch) for epoch in range(5)]
    back = [backwards(epoch) for epoch in reversed(range(5))][::-1]
    np.testing.assert_array_equal(there, back)
    assert len({index.tobytes() for index in there}) == 5, "two epochs are alike"
    assert (there[0] != shuffled(replace(SMALL, seed=43))(0)).any()
    left_out = [set(range(70)) - set(index.ravel()) for index in there]
    assert len(set(map(frozenset, left_out))) > 1, "always the same are left out"
    code = (
        "from helpers.data.sequences import shuffled; "
        "from helpers.engine.settings import Reverse; "
        "print(shuffled(Reverse())(3)[-1].tolist())"
    )
    assert run_python(code) == str(shuffled(Reverse())(3)[-1].tolist())


def test_random_numbers_of_an_epoch_follow_from_seed_and_epoch_alone():
    """Eight for each example, all of their own: uniform, and others in each epoch."""
    batches = shuffled(SMALL)(0)
    epochs = [draw_uniforms(SMALL, epoch, batches) for epoch in (0, 1, 0)]
    assert (epochs[0].shape, epochs[0].dtype) == ((8, 8, 8), np.float32)
    np.testing.assert_array_equal(epochs[0], epochs[2])
    assert not np.isin(epochs[0], epochs[1]).any(), "two epochs are augmented alike"
    other = draw_uniforms(replace(SMALL, seed=43), 0, batches)
    assert not np.isin(epochs[0], other).any()
    assert len(np.unique(epochs[0])) == epochs[0].size
    assert 0 <= epochs[0].min() < 0.05 and 0.95 < epochs[0].max() < 1
