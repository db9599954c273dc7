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
from helpers.data import photos

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path / "data"))
    monkeypatch.setenv("TQDM_DISABLE", "1")


def picture(width=40, height=30, colour=None):
    """A picture of noise, or of one colour."""
    if colour is not None:
        return Image.new("RGB", (width, height), colour)
    return Image.fromarray(RNG.integers(256, size=(height, width, 3), dtype=np.uint8))


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
    assert tool.prepare_images(folder) == []
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
    tool.prepare_images(tmp_path / "mine")
    parts, classes = photos.load_images(tmp_path / "mine")
    assert classes == ["a", "b"]
    counts = {part: np.bincount(labels).tolist() for part, (_, labels) in parts.items()}
    assert counts == {"train": [5, 5], "test": [2, 2]}


def test_names_in_any_script(tmp_path):
    """Of classes and of files, with blanks and dots; classes are ordered by name."""
    names = ["Füchse", "v1.5 & more", "鳥"]
    for name in names:
        for i in range(5):
            save(tmp_path / "Meine Bilder" / name / f"ü {i}.JPG", format="jpeg")
    assert tool.prepare_images(tmp_path / "Meine Bilder") == []
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
    found = tool.read_chunk(listed)
    assert found["images"].shape == (len(found["labels"]), 32, 32, 3)
    bad = {line.partition(": ")[0] for line in found["bad"]}
    good = {str(listed[label][0]) for label in found["labels"]}
    assert bad | good == {str(path) for path, _ in listed} and not bad & good


def test_a_reader_may_raise_anything(folder, monkeypatch):
    """AVIF's raises RuntimeError."""
    read = photos.read_picture

    def raising(path):
        if path.name == "07.png":
            raise RuntimeError("decoding failed\nat 7")
        return read(path)

    monkeypatch.setattr(photos, "read_picture", raising)
    bad = tool.prepare_images(folder)
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
        bad = tool.prepare_images(folder)
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
    monkeypatch.setattr(tool, "WEIGHTS", ("http://127.0.0.1:9/net.pth", "md5:0"))
    monkeypatch.setenv("PHOTOS", str(folder))
    tool.main([])
    out, error = capsys.readouterr()
    assert f"{len(said)} files could not be read and are left out:" in out
    assert all(name in out for name in said) and ".DS_Store" not in out
    assert "42 train, 10 test photos of 2 classes" in " ".join(out.split())
    assert (
        "Their ResNet34 features are missing; the odd-one-out pages then take mean "
        "colours, all else is ready: could not download net.pth"
    ) in error


def test_images_alone_need_no_network(folder, monkeypatch, capsys):
    monkeypatch.setattr(tool, "WEIGHTS", ("http://127.0.0.1:9/net.pth", "md5:0"))
    tool.main(["--images-only", str(folder)])
    assert photos.images_file(folder).exists() and not photos.prepared(folder)
    assert "features" not in capsys.readouterr().err


def stop_at(folder, n, monkeypatch):
    """Stop a conversion in chunks of ten at a picture; the list of those read grows."""
    monkeypatch.setattr(tool, "CHUNK", 10)
    read, seen = photos.read_picture, []

    def stopping(path):
        seen.append(path)
        if len(seen) == n:
            raise KeyboardInterrupt
        return read(path)

    monkeypatch.setattr(photos, "read_picture", stopping)
    with pytest.raises(KeyboardInterrupt):
        tool.prepare_images(folder)
    return seen


def test_a_stopped_conversion_goes_on(folder, monkeypatch):
    """No picture is read twice; nothing is left but the file."""
    seen = stop_at(folder, 25, monkeypatch)
    assert not photos.images_file(folder).exists()
    tool.prepare_images(folder)
    assert len(seen) == 25 + 30  # two chunks of ten were kept
    tool.prepare_images(folder)
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
    tool.prepare_images(folder)
    photos.features_file(folder).write_bytes(b"of the old ones")
    before = photos.images_file(folder).read_bytes()
    tool.prepare_images(folder)
    assert photos.features_file(folder).exists(), "nothing has changed"
    CHANGES[change](folder)
    tool.prepare_images(folder)
    assert photos.images_file(folder).read_bytes() != before
    assert not photos.features_file(folder).exists()


def test_a_folder_that_changes_between_two_stops_is_converted_anew(folder, monkeypatch):
    """Chunks of the old files are not used."""
    stop_at(folder, 15, monkeypatch)
    save(folder / "cat" / "00.png", picture(colour="red"))
    tool.prepare_images(folder)
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
        return np.repeat(images.mean((1, 2, 3))[:, None], photos.N_FEATURES, axis=1)

    monkeypatch.setattr(tool, "network", lambda _: run)
    monkeypatch.setattr(tool, "BATCH", 20)
    monkeypatch.setattr(tool, "fetch", lambda *_: None)
    with pytest.raises(SystemExit, match="stopped"):
        tool.main([str(folder)])
    CHANGES["a new class"](folder)
    tool.main([str(folder)])
    parts, _ = photos.load_images(folder)
    found = photos.load_features(folder, parts)
    for part, (images, _) in parts.items():
        np.testing.assert_allclose(found[part][:, 0], images.mean((1, 2, 3)))


def test_make_data_takes_a_folder(folder):
    """As ``make data PHOTOS=folder``; a wrong file of weights stands for no network."""
    photos.data_folder().mkdir()
    (photos.data_folder() / tool.WEIGHTS[0].rsplit("/", 1)[-1]).write_bytes(b"mine")
    top = Path(photos.__file__).parents[3]
    command = "make", "-o", "environment", "data", f"PHOTOS={folder}"
    done = subprocess.run(
        [*command, f"RUN={sys.executable}"], cwd=top, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "40 train, 10 test photos of 2 classes" in done.stdout
    assert "ResNet34 features are missing" in done.stderr
    assert photos.load_images(folder)[1] == ["cat", "dog"]


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
        tool.prepare_images(folder)
    assert not photos.images_file(folder).exists()
    assert not photos.images_file(folder).with_suffix(".parts").exists()


def test_an_unknown_name_is_no_folder():
    with pytest.raises(ValueError, match="unknown data set 'imagenet'"):
        tool.prepare_images("imagenet")
    assert not photos.data_folder().exists()
