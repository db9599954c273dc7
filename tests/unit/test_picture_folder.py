"""A folder of anybody's pictures: any size, any format, and what is no picture."""

import io
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import data as tool
from helpers.data import features, photos

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path / "data"))
    monkeypatch.setenv("TQDM_DISABLE", "1")


def picture(mode="RGB", width=40, height=30, colour=None):
    """A picture of noise, or of one colour."""
    if colour is not None:
        return Image.new(mode, (width, height), colour)
    channels = len(Image.new(mode, (1, 1)).getbands())
    noise = RNG.integers(256, size=(height, width, channels), dtype=np.uint8)
    return Image.fromarray(noise.squeeze(), mode if mode == "CMYK" else None)


def save(path, image=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or picture()).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path):
    """Two classes of 20 and 30 pictures."""
    for name, n in {"cat": 20, "dog": 30}.items():
        for i in range(n):
            save(tmp_path / "mine" / name / f"{i:02d}.png")
    return tmp_path / "mine"


def test_a_folder_becomes_one_file_with_a_split(folder):
    """A fifth of each class is the test part; every picture is in one part."""
    assert photos.prepare_images(folder) == []
    parts, classes = photos.load_images(folder)
    assert classes == ["cat", "dog"]
    for part, counts in {"train": [16, 24], "test": [4, 6]}.items():
        images, labels = parts[part]
        assert images.dtype == np.uint8 and images.shape[1:] == (32, 32, 3)
        assert np.bincount(labels).tolist() == counts
    rows = np.concatenate([images for images, _ in parts.values()])
    assert len(np.unique(rows, axis=0)) == 50
    expected = {photos.read_picture(p).tobytes() for p in folder.rglob("*.png")}
    assert {row.tobytes() for row in rows} == expected


def test_train_and_test_are_kept_as_they_are(tmp_path):
    for part, n in {"train": 5, "test": 2}.items():
        for name in ("a", "b"):
            for i in range(n):
                save(tmp_path / "mine" / part / name / "deeper" / f"{i}.jpg")
    photos.prepare_images(tmp_path / "mine")
    parts, classes = photos.load_images(tmp_path / "mine")
    assert classes == ["a", "b"]
    counts = {part: np.bincount(labels).tolist() for part, (_, labels) in parts.items()}
    assert counts == {"train": [5, 5], "test": [2, 2]}


FORMATS = {
    "jpg": {}, "png": {}, "gif": {}, "bmp": {}, "tiff": {}, "webp": {"lossless": True},
    "ppm": {},
}  # fmt: skip


@pytest.mark.parametrize("ending", FORMATS)
def test_common_formats_are_read(tmp_path, ending):
    path = save(tmp_path / f"x.{ending}", picture(colour="teal"), **FORMATS[ending])
    found = photos.read_picture(path)
    assert found.shape == (32, 32, 3) and found.dtype == np.uint8
    np.testing.assert_allclose(
        found, np.broadcast_to([0, 128, 128], found.shape), atol=3
    )


def test_kinds_of_pixels(tmp_path):
    """Grey, CMYK, with a palette, transparent, of 16 bits, of one bit, of one pixel."""
    read = photos.read_picture
    grey = read(save(tmp_path / "grey.png", picture("L", colour=99)))
    assert (grey == 99).all()
    ink = read(save(tmp_path / "ink.jpg", picture("CMYK", colour=(0, 255, 255, 0))))
    assert ink[..., 0].min() > 200 and ink[..., 1:].max() < 60
    clear = read(save(tmp_path / "clear.png", picture("RGBA", colour=(9, 9, 9, 0))))
    assert (clear == 255).all()
    half = read(save(tmp_path / "half.png", picture("LA", colour=(0, 128))))
    assert (abs(half.astype(int) - 127) <= 1).all()
    pale = picture("RGB", colour="red").quantize(4)
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
    assert (read(save(tmp_path / "bit.png", picture("1", colour=1))) == 255).all()
    dot = read(save(tmp_path / "dot.png", picture(width=1, height=1, colour="blue")))
    assert (dot == [0, 0, 255]).all()
    line = read(
        save(tmp_path / "line.png", picture(width=900, height=1, colour="blue"))
    )
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


def test_names_in_any_script(tmp_path):
    """Of classes and of files, with blanks and dots; classes are ordered by name."""
    names = ["Füchse", "v1.5 & more", "鳥"]
    for name in names:
        for i in range(5):
            save(tmp_path / "Meine Bilder" / name / f"ü {i}.JPG", format="jpeg")
    assert photos.prepare_images(tmp_path / "Meine Bilder") == []
    parts, classes = photos.load_images(tmp_path / "Meine Bilder")
    assert classes == names
    assert np.bincount(parts["train"][1]).tolist() == [3, 3, 3]


@pytest.mark.parametrize("ending", ["jpg", "png", "gif", "webp"])
def test_a_damaged_file_stops_nothing(tmp_path, ending):
    """Bytes changed, or the end cut off, at many places: a square, or a line."""
    content = save(tmp_path / f"x.{ending}", picture(width=16, height=12)).read_bytes()
    listed = []
    for i in range(60):
        spoiled = bytearray(content)
        for place in RNG.integers(len(spoiled), size=3):
            spoiled[place] = RNG.integers(256)
        path = tmp_path / f"{i}.{ending}"
        path.write_bytes(spoiled[: RNG.integers(len(spoiled)) if i % 3 else None])
        listed.append((path, i))
    found = photos.read_chunk(listed, 32)
    assert found["images"].shape == (len(found["labels"]), 32, 32, 3)
    bad = {line.partition(": ")[0] for line in found["bad"]}
    good = {str(listed[label][0]) for label in found["labels"]}
    assert bad | good == {str(path) for path, _ in listed} and not bad & good


def test_a_reader_may_raise_anything(folder, monkeypatch):
    """AVIF's raises RuntimeError."""
    read = photos.read_picture

    def raising(path, side):
        if path.name == "07.png":
            raise RuntimeError("decoding failed\nat 7")
        return read(path, side)

    monkeypatch.setattr(photos, "read_picture", raising)
    bad = photos.prepare_images(folder)
    assert bad == [f"{folder / c / '07.png'}: decoding failed" for c in ("cat", "dog")]


def broken(folder):
    """Files that are no pictures, by what is said about them."""
    good = save(folder / "cat" / "good.jpg")
    content = good.read_bytes()
    bomb, large = io.BytesIO(), io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(bomb, "png")
    Image.new("1", (10_000, 10_000)).save(large, "png")
    files = {
        "truncated.jpg": (content[: len(content) // 2], "truncated"),
        "empty.jpg": (b"", "cannot identify"),
        "notes.txt": (b"no picture", "cannot identify"),
        "page.jpg": (b"<html>404</html>", "cannot identify"),
        "bomb.png": (bomb.getvalue(), "decompression bomb"),
        "large.png": (large.getvalue(), "decompression bomb"),
        "cut.png": (save(folder / "cat" / "g.png").read_bytes()[:200], ""),
    }
    for name, (data, _) in files.items():
        (folder / "cat" / name).write_bytes(data)
    (folder / "cat" / ".DS_Store").write_bytes(b"hidden")
    return {name: said for name, (_, said) in files.items()}


def test_bad_files_are_listed_and_left_out(folder, capsys, monkeypatch):
    said = broken(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pytest makes errors of all warnings
        bad = photos.prepare_images(folder)
    assert len(bad) == len(said)
    for name, why in said.items():
        (line,) = [line for line in bad if f"/{name}: " in line]
        assert why in line
    parts, _ = photos.load_images(folder)
    assert sum(len(labels) for _, labels in parts.values()) == 52


def test_the_command_lists_bad_files_and_keeps_photos_without_features(
    folder, capsys, monkeypatch
):
    """Where there is no network, the pictures are ready all the same."""
    said = broken(folder)
    monkeypatch.setattr(features, "WEIGHTS", ("http://127.0.0.1:9/net.pth", "md5:0"))
    monkeypatch.setenv("PHOTOS", str(folder))
    tool.main([])
    out, error = capsys.readouterr()
    assert f"{len(said)} files could not be read and are left out:" in error
    assert all(name in error for name in said) and ".DS_Store" not in error
    assert "42 train, 10 test photos of 2 classes" in " ".join(out.split())
    assert (
        "Their ResNet34 features are missing; the odd-one-out pages then take mean "
        "colours, all else is ready: could not download net.pth"
    ) in error


def stop_at(folder, n, monkeypatch):
    """Stop a conversion in chunks of ten at a picture; the list of those read grows."""
    monkeypatch.setattr(photos, "CHUNK", 10)
    read, seen = photos.read_picture, []

    def stopping(path, side):
        seen.append(path)
        if len(seen) == n:
            raise KeyboardInterrupt
        return read(path, side)

    monkeypatch.setattr(photos, "read_picture", stopping)
    with pytest.raises(KeyboardInterrupt):
        photos.prepare_images(folder)
    return seen


def test_a_stopped_conversion_goes_on(folder, monkeypatch):
    """No picture is read twice; nothing is left but the file."""
    seen = stop_at(folder, 25, monkeypatch)
    assert not photos.images_file(folder).exists()
    photos.prepare_images(folder)
    assert len(seen) == 25 + 30  # two chunks of ten were kept
    photos.prepare_images(folder)
    assert len(seen) == 55
    assert [p.name for p in photos.data_folder().iterdir()] == [
        photos.images_file(folder).name
    ]


CHANGES = {
    "a new file": lambda folder: save(folder / "cat" / "new.png"),
    "another picture": lambda folder: save(folder / "cat" / "07.png"),
    "a file less": lambda folder: (folder / "dog" / "07.png").unlink(),
    "a new class": lambda folder: (folder / "cat").rename(folder / "lynx"),
    "another class": lambda folder: (folder / "cat" / "07.png").rename(
        folder / "dog" / "77.png"
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_folder_that_has_changed_is_converted_anew(folder, change):
    photos.prepare_images(folder)
    photos.features_file(folder).write_bytes(b"of the old ones")
    before = photos.images_file(folder).read_bytes()
    photos.prepare_images(folder)
    assert photos.features_file(folder).exists(), "nothing has changed"
    CHANGES[change](folder)
    photos.prepare_images(folder)
    assert photos.images_file(folder).read_bytes() != before
    assert not photos.features_file(folder).exists()


def test_a_folder_that_changes_between_two_stops_is_converted_anew(folder, monkeypatch):
    """Chunks of the old files are not used."""
    stop_at(folder, 15, monkeypatch)
    save(folder / "cat" / "00.png", picture(colour="red"))
    photos.prepare_images(folder)
    parts, _ = photos.load_images(folder)
    images = np.concatenate([images for images, _ in parts.values()])
    assert (images == [255, 0, 0]).all(axis=(1, 2, 3)).sum() == 1


def test_a_stopped_extraction_of_a_folder_that_changes_begins_anew(folder, monkeypatch):
    """Batches of features of the old pictures are not used: here their means."""
    sizes = []

    def run(images):
        sizes.append(len(images))
        if len(sizes) == 2:
            raise KeyboardInterrupt
        return np.repeat(images.mean((1, 2, 3))[:, None], features.N_FEATURES, axis=1)

    monkeypatch.setattr(features, "network", lambda _: run)
    monkeypatch.setattr(features, "BATCH", 20)
    monkeypatch.setattr(features, "fetch", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        features.prepare(folder)
    CHANGES["a new class"](folder)
    features.prepare(folder)
    for found, _, images in features.load(folder)[0].values():
        np.testing.assert_allclose(found[:, 0], images.mean((1, 2, 3)))


def test_a_relative_folder_is_the_same_for_make_and_for_a_page(tmp_path, monkeypatch):
    """Seen from the top of the repository, if there is none where the page is."""
    top = Path(photos.__file__).parents[3]
    seen = photos.images_file("tests")
    assert seen == photos.images_file(top / "tests")
    monkeypatch.chdir(top / "notebooks")
    assert photos.images_file("tests") == seen
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    assert photos.images_file("tests") == photos.images_file(tmp_path / "tests") != seen


def test_make_data_takes_a_folder(folder):
    """As ``make data PHOTOS=folder``; a wrong file of weights stands for no network."""
    photos.data_folder().mkdir()
    (photos.data_folder() / features.WEIGHTS[0].rsplit("/", 1)[-1]).write_bytes(b"mine")
    top = Path(photos.__file__).parents[3]
    command = "make", "-o", "environment", "data", f"PHOTOS={folder}"
    done = subprocess.run(
        [*command, f"RUN={sys.executable}"], cwd=top, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "40 train, 10 test photos of 2 classes" in done.stdout
    assert "ResNet34 features are missing" in done.stderr
    assert photos.load_images(folder)[1] == ["cat", "dog"]


def test_folders_of_one_name_have_files_of_their_own(tmp_path):
    names = {photos.images_file(tmp_path / where / "mine") for where in "ab"}
    assert len(names) == 2 and all(n.name.startswith("mine-") for n in names)
    assert photos.images_file("cifar10").name == "cifar10.npz"


def rename(folder):
    (folder / "cat").rename(folder / ".cat")


def no_folder(folder):
    folder.rename(folder.with_name("elsewhere"))


def empty(folder):
    for path in (folder / "cat").iterdir():
        path.unlink()


def one_level_too_high(folder):
    (folder / "all").mkdir()
    for name in ("cat", "dog"):
        (folder / name).rename(folder / "all" / name)


def other_split(folder):
    (folder / "cat").rename(folder / "train")
    (folder / "dog").rename(folder / "val")


def few(folder):
    for path in [*(folder / "dog").iterdir()][2:]:
        path.unlink()


def unreadable(folder):
    for path in (folder / "cat").iterdir():
        path.write_bytes(b"no picture")


def unequal(folder):
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            for i in range(3):
                save(folder / part / name / f"{i}.png")
    for name in ("cat", "dog"):
        (folder / name).rename(folder / "train" / f"{name}s")


WRONG = {
    "one class": (
        rename,
        r"expected two or more classes, one folder each, in .*\['dog'\]",
    ),
    "one level too high": (one_level_too_high, r"two or more classes, .*\['all'\]"),
    "another split": (
        other_split,
        r"expected the folders train and test, or one for each class, in .*mine, got "
        r"\['train', 'val'\]",
    ),
    "two pictures": (
        few,
        "the class 'dog' has 0 pictures in the part train, expected 2 or more; 0 files "
        "could not be read$",
    ),
    "no folder": (no_folder, "expected a folder of pictures, got .*mine"),
    "an empty class": (
        empty,
        "the class 'cat' has 0 pictures in the part train, .*; 0 files",
    ),
    "a class of bad files": (
        unreadable,
        r"(?s)the class 'cat' has 0 pictures in the part train, expected 2 or more; "
        r"20 files could not be read:\n.*cannot identify",
    ),
    "unequal parts": (
        unequal,
        "expected the same classes in train and test, got 'cats'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_folder_is_one_clear_sentence(folder, case):
    spoil, said = WRONG[case]
    spoil(folder)
    with pytest.raises(ValueError, match=said):
        photos.prepare_images(folder)
    assert not photos.images_file(folder).exists()


def test_an_unknown_name_is_no_folder():
    with pytest.raises(ValueError, match="unknown data set 'imagenet'"):
        photos.prepare_images("imagenet")
    assert not photos.data_folder().exists()
