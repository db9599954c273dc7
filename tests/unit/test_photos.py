"""Photos as pages load them: files found, whole, and fitting; pictures of any kind."""

import numpy as np
import pytest

from helpers.data import photos, sets


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """``$DATA_FOLDER``."""
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def ready(folder):
    """Prepared files with made-up features."""
    arrays, rows = {"classes": np.array(["a", "b"])}, {}
    for part, n in {"train": 90, "test": 4}.items():
        arrays[f"{part}_images"] = np.zeros((n, 32, 32, 3), np.uint8)
        arrays[f"{part}_labels"] = np.arange(n, dtype=np.int32) % 2
        rows[part] = np.random.default_rng(n).gamma(2, size=(n, 512)).astype("float32")
    np.savez(folder / "cifar100.npz", **arrays)
    np.savez(folder / "cifar100-resnet34.npz", **rows)
    return folder


def load(name):
    """Features of photos, once these are loaded."""
    return photos.load_features(name, photos.load_images(name)[0])


def cut_short(path):
    path.write_bytes(path.read_bytes()[:9_000])


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[5_000] ^= 1
    path.write_bytes(content)


def change(**arrays):
    def damage(path):
        np.savez(path, **photos.read_npz(path) | arrays)

    return damage


DAMAGE = {
    "cut short": cut_short,
    "a bit": flip_a_bit,
    "another shape": change(test=np.zeros((4, 511), np.float32)),
    "not finite": change(test=np.full((4, 512), np.nan, np.float32)),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_file_raises_an_error_with_its_name(ready, case):
    path = ready / "cifar100-resnet34.npz"
    DAMAGE[case](path)
    message = rf"^{path} is damaged \(.*\): remove it and run `make data` again$"
    with pytest.raises(ValueError, match=message):
        load("cifar100")


def test_missing_photos_raise_an_error_that_says_what_to_do(folder):
    with pytest.raises(
        FileNotFoundError, match=r"no cifar100\.npz .*: run `make data`"
    ):
        load("cifar100")
    with pytest.raises(ValueError, match="unknown data set 'imagenet'"):
        load("imagenet")


def test_pages_use_photos_when_they_are_prepared(folder, monkeypatch, request):
    """Unless a setting says otherwise."""
    monkeypatch.delenv("PHOTOS", raising=False)
    assert sets.source() == "digits"
    request.getfixturevalue("ready")
    assert sets.source() == "cifar100"
    for name in ("digits", "cifar10", str(folder)):
        monkeypatch.setenv("PHOTOS", name)
        assert sets.source() == name


def test_photos_come_centred_in_three_parts(ready):
    """The mean of the training part is subtracted from all."""
    parts, _ = sets.of_photos("cifar100", seed=0)
    raw = load("cifar100")
    assert len(parts["train"]) + len(parts["validation"]) == len(raw["train"])
    np.testing.assert_allclose(parts["train"].features.mean(axis=0), 0, atol=1e-5)
    steps, raw_steps = (
        np.diff(x, axis=0) for x in (parts["test"].features, raw["test"])
    )
    scale = raw_steps.std() / steps.std()
    np.testing.assert_allclose(steps * scale, raw_steps, rtol=1e-3, atol=1e-5)
