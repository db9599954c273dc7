"""Photos as pages load them: files found, whole, and fitting; pictures of any kind."""

import numpy as np
import pytest
from PIL import Image

from helpers.data import photos, pictures, sets


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


@pytest.mark.parametrize("name", ["cifar11", "./birds", "/nowhere/birds"])
def test_a_mistyped_source_of_pictures_is_noticed_at_once(folder, monkeypatch, name):
    """Where the vision page asks for the source, before it trains anything."""
    monkeypatch.setenv("PHOTOS", name)
    message = f"PHOTOS = {name!r}: expected digits, cifar10, cifar100, or a folder"
    with pytest.raises(ValueError, match=f"^{message} of pictures$"):
        pictures.source()
    for good in ("digits", "cifar10", str(folder)):
        monkeypatch.setenv("PHOTOS", good)
        assert pictures.source() == good


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


def save(path, image, **options):
    image.save(path, **options)
    return path


FORMATS = {
    "jpg": {}, "png": {}, "gif": {}, "bmp": {}, "tiff": {}, "webp": {"lossless": True},
    "ppm": {},
}  # fmt: skip


@pytest.mark.parametrize("ending", FORMATS)
def test_common_formats_are_read(tmp_path, ending):
    path = save(
        tmp_path / f"x.{ending}", Image.new("RGB", (40, 30), "teal"), **FORMATS[ending]
    )
    found = photos.read_picture(path)
    assert found.shape == (32, 32, 3) and found.dtype == np.uint8
    np.testing.assert_allclose(
        found, np.broadcast_to([0, 128, 128], found.shape), atol=3
    )


def test_kinds_of_pixels(tmp_path):
    """Grey, CMYK, with a palette, transparent, of 16 bits, of one bit, of one pixel."""
    read = photos.read_picture
    grey = read(save(tmp_path / "grey.png", Image.new("L", (40, 30), 99)))
    assert (grey == 99).all()
    ink = read(
        save(tmp_path / "ink.jpg", Image.new("CMYK", (40, 30), (0, 255, 255, 0)))
    )
    assert ink[..., 0].min() > 200 and ink[..., 1:].max() < 60
    clear = read(
        save(tmp_path / "clear.png", Image.new("RGBA", (40, 30), (9, 9, 9, 0)))
    )
    assert (clear == 255).all()
    half = read(save(tmp_path / "half.png", Image.new("LA", (40, 30), (0, 128))))
    assert (abs(half.astype(int) - 127) <= 1).all()
    pale = Image.new("RGB", (40, 30), "red").quantize(4)
    assert (read(save(tmp_path / "p.gif", pale))[..., 0] > 250).all()
    deep = Image.fromarray(
        np.linspace(0, 65_535, 1_024).reshape(32, 32).astype("uint16")
    )
    deep = read(save(tmp_path / "deep.png", deep))
    assert (
        deep[0, 0, 0] < 3
        and deep[-1, -1, 0] > 252
        and deep[16, 16, 0] in range(120, 140)
    )
    assert (read(save(tmp_path / "bit.png", Image.new("1", (40, 30), 1))) == 255).all()
    dot = read(save(tmp_path / "dot.png", Image.new("RGB", (1, 1), "blue")))
    assert (dot == [0, 0, 255]).all()
    line = read(save(tmp_path / "line.png", Image.new("RGB", (900, 1), "blue")))
    assert (line == [0, 0, 255]).all()


def test_the_middle_square_is_taken_and_the_camera_heeded(tmp_path):
    wide = Image.new("RGB", (96, 32), "red")
    wide.paste(Image.new("RGB", (32, 32), "lime"), (32, 0))
    assert (photos.read_picture(save(tmp_path / "w.png", wide)) == [0, 255, 0]).all()
    upright = Image.new("RGB", (32, 32), "black")
    upright.paste("white", (0, 0, 32, 16))  # the upper half
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    turned = save(tmp_path / "t.png", upright.rotate(90, expand=True), exif=exif)
    found = photos.read_picture(turned)
    assert found[:14].min() > 250 and found[18:].max() < 5


def test_a_transparent_colour_of_a_palette_is_white(tmp_path):
    hole = Image.new("P", (8, 8), 1)
    hole.putpalette([255, 0, 0, 0, 0, 255])
    found = photos.read_picture(save(tmp_path / "p.png", hole, transparency=1))
    assert (found == 255).all()
    found = photos.read_picture(save(tmp_path / "q.png", hole, transparency=0))
    assert (found == [0, 0, 255]).all()
