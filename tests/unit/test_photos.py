"""Photos and their features: downloaded, checked, resumed, from a real local server."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import small_cifar
from disks import in_a_namespace
from helpers import download, photos, sets
from helpers.download import fetch
from warm import Warm

DATA = os.urandom(300_000)
SUM = f"md5:{small_cifar.md5(DATA)}"


@pytest.fixture
def server(tmp_path):
    """Serves ``tmp_path/served``, where ``file.bin`` is."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "file.bin").write_bytes(DATA)
    with small_cifar.serving(folder) as server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    for name, value in {"SILENCE": 1, "PATIENCE": 3, "PAUSE": 0.01}.items():
        monkeypatch.setattr(download, name, value)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "data" / "file.bin"


def get(path, *servers, checksum=SUM, **options):
    urls = [f"{server.url}/file.bin" for server in servers]
    return fetch(path, urls, checksum, bar=False, **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


# ---------------------------------------------------------------- one file


def test_a_download_gives_the_file_and_nothing_else(server, path):
    assert get(path, server).read_bytes() == DATA
    assert names(path.parent) == ["file.bin"]
    get(path, server)
    assert len(server.asked) == 1, "a file that is there is not asked for again"


@pytest.mark.parametrize("fault", ["cut", "stall"])
def test_a_connection_that_breaks_off_is_taken_up_again(server, path, fault):
    """Three times; each time only the rest is asked for."""
    server.faults = [(fault, 70_000), (fault, 80_000), (fault, 1_000)]
    assert get(path, server).read_bytes() == DATA
    ranges = [wanted for _, wanted in server.asked]
    starts = [int(re.findall(r"\d+", wanted)[0]) for wanted in ranges[1:]]
    assert ranges[0] == "" and len(ranges) == 4
    assert 60_000 < starts[0] < 140_000 < starts[1] <= starts[2] <= 151_000


def test_a_slow_download_arrives(server, path):
    server.faults = [("slow", 3_000)]
    assert get(path, server).read_bytes() == DATA


def test_what_came_is_kept_for_the_next_try(server, path):
    """After the last try the part stays, under another name, and is gone on from."""
    server.faults = [("cut", 100_000)] + 5 * [("status", 503)]
    message = (
        rf"^could not get file\.bin \(0\.1 MB are kept\): {server.url}/file\.bin "
        rf"answered 503 Service Unavailable: try again, name a mirror in "
        rf"DATA_MIRRORS, or put the file \({SUM}\) into {path.parent}$"
    )
    with pytest.raises(OSError, match=message):
        get(path, server)
    assert names(path.parent) == ["file.bin.part"]
    server.faults = []
    assert get(path, server).read_bytes() == DATA
    assert 96_000 < int(server.asked[-1][1][6:-1]) <= 100_000
    assert names(path.parent) == ["file.bin"]


def test_a_server_that_knows_no_ranges_begins_anew(server, path):
    server.faults = [("cut", 70_000), ("whole", 0)]
    assert get(path, server).read_bytes() == DATA


def test_a_wrong_range_is_noticed(server, path):
    server.faults = [("cut", 70_000), ("shift", 5)]
    assert get(path, server).read_bytes() == DATA


def test_a_file_with_another_checksum_is_removed(server, path):
    server.faults = [("lie", 150_000)]
    message = rf"file.bin gave another file: its md5 is [0-9a-f]{{32}}, expected {SUM}"
    with pytest.raises(OSError, match=message):
        get(path, server)
    assert names(path.parent) == []


def test_a_part_that_was_wrong_costs_one_more_download(server, path):
    """What an earlier try left may be of another file: then it starts from nothing."""
    path.parent.mkdir()
    Path(f"{path}.part").write_bytes(b"of another file")
    assert get(path, server).read_bytes() == DATA
    assert [wanted for _, wanted in server.asked] == ["bytes=15-", ""]


def test_a_part_longer_than_the_file_is_no_trap(server, path):
    path.parent.mkdir()
    Path(f"{path}.part").write_bytes(DATA + b"more")
    assert get(path, server).read_bytes() == DATA


def test_the_next_address_is_tried(server, path, tmp_path):
    """One has not got it, one lies, the third is right."""
    empty = tmp_path / "empty"
    empty.mkdir()
    with (
        small_cifar.serving(empty) as first,
        small_cifar.serving(server.folder) as liar,
    ):
        liar.faults = [("lie", 3)]
        assert get(path, first, liar, server).read_bytes() == DATA


def test_no_network_is_one_sentence(path):
    """A port where nobody listens; the reason is in it."""
    with small_cifar.serving(path.parent.parent) as gone:
        pass
    with pytest.raises(
        OSError, match=r"could not get file\.bin: http.*refused"
    ) as caught:
        get(path, gone)
    assert "\n" not in str(caught.value)
    assert names(path.parent) == []


def test_what_is_no_address_is_refused_at_once(path):
    with pytest.raises(
        OSError, match=r"could not get file\.bin: file\.bin is no address"
    ):
        fetch(path, ["file.bin"], SUM, bar=False)


def test_a_server_that_always_begins_anew_is_given_up(server, path):
    """Without ranges and with a break every time, nothing more ever comes."""
    server.faults = 20 * [("whole cut", 60_000)]
    with pytest.raises(OSError, match="broke off"):
        get(path, server)
    assert len(server.asked) == 4


def test_a_name_that_nobody_knows_is_one_sentence(path):
    with pytest.raises(OSError, match=r"could not get file\.bin: http://no\.invalid/x"):
        fetch(path, ["http://no.invalid/x"], SUM, bar=False)


def test_a_file_put_there_by_hand_is_accepted(path):
    path.parent.mkdir()
    path.write_bytes(DATA)
    assert get(path) == path


def test_the_same_file_under_another_name_is_found(path, tmp_path):
    """Beside it or in a folder nearby: what counts is the checksum."""
    path.parent.mkdir()
    (path.parent / "copy (1).bin").write_bytes(DATA)
    (path.parent / "another.bin").write_bytes(DATA[::-1])
    assert get(path).read_bytes() == DATA
    path.unlink()
    (path.parent / "copy (1).bin").rename(tmp_path / "nearby.bin")
    assert get(path, look_in=[tmp_path]).read_bytes() == DATA
    assert names(path.parent) == ["another.bin", "file.bin"]


def test_another_file_in_its_place_is_refused_and_left(server, path):
    path.parent.mkdir()
    path.write_bytes(b"precious")
    message = rf"^{path} is not the file it should be: its md5 is .*: move it away$"
    with pytest.raises(ValueError, match=message):
        get(path, server)
    assert path.read_bytes() == b"precious"
    assert not server.asked


def test_a_full_disk_is_one_sentence_before_the_download(server, path, monkeypatch):
    """The size is known from the first answer."""
    usage = shutil.disk_usage(path.parent.parent)._replace(free=100_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    message = (
        rf"^\[Errno 28\] no space left in {path.parent}: 0.3 MB are needed, 0.1 MB are "
        "free: make room there, or name another folder in DATA_FOLDER$"
    )
    with pytest.raises(OSError, match=message):
        get(path, server)
    assert names(path.parent) == []


# ---------------------------------------------------------------- a data set


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Archives, weights, and what they hold."""
    folder = tmp_path_factory.mktemp("small")
    made = {name: small_cifar.make(folder, name) for name in photos.DATA}
    weights = small_cifar.make_weights(folder)
    return folder, made, weights


@pytest.fixture
def home(small, tmp_path, monkeypatch):
    """Everything at hand on a server; an empty data folder; stand-ins in place."""
    folder, made, weights = small
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path / "data"))
    monkeypatch.delenv("DATA_MIRRORS", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    with small_cifar.serving(folder) as server:
        data = {
            name: values | {"url": f"{server.url}/{values['filename']}"}
            for name, (values, *_) in made.items()
        }
        server.values = {"data": data, "weights": f"{server.url}/{weights}"}
        small_cifar.stand_in(server.values, monkeypatch.setattr)
        server.data = tmp_path / "data"
        yield server


@pytest.fixture(scope="module")
def warm():
    """A Python that has imported torchvision, which takes longer than all the rest."""
    with closing(Warm("torchvision")) as process:
        yield process


def stand_ins(home, **values):
    """The file that says what to do: the arguments of ``small_cifar``."""
    file = home.data.parent / "stand-ins.json"
    file.write_text(json.dumps(home.values | values))
    return small_cifar.__file__, str(file)


def run_tool(warm, home, **values):
    """The real ``tools/data.py`` in a process of its own."""
    return warm.run(*stand_ins(home, **values))


def contents(folder):
    """Whatever must not be left behind would stand here."""
    return {path.name for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("name", photos.DATA)
def test_pictures_labels_and_names_are_those_of_the_archive(home, small, name):
    """Through torchvision; what it unpacks does not stay."""
    _, arrays, classes = small[1][name]
    photos.write_images(name, bar=False)
    found = photos.read_images(name)
    for part, (images, labels) in arrays.items():
        np.testing.assert_array_equal(found[f"{part}_images"], images)
        np.testing.assert_array_equal(found[f"{part}_labels"], labels)
    assert found["classes"].tolist() == classes
    archive = small_cifar.FORMATS[name]["filename"]
    assert contents(home.data) == {f"{name}.npz", archive}


@pytest.mark.slow
def test_features_are_those_of_the_plain_network(home, small):
    """Resized, normalised, torchvision's own ResNet34 up to the pooling."""
    import torch
    from torchvision.models import ResNet34_Weights, resnet34
    from torchvision.transforms import v2

    images = small[1]["cifar100"][1]["test"][0][:3]
    path = photos.network_weights(bar=False)
    net = resnet34()
    net.load_state_dict(torch.load(path, weights_only=True))
    net.eval()
    usual = ResNet34_Weights.IMAGENET1K_V1.transforms()
    prepare = v2.Compose([
        v2.Resize((224, 224), antialias=True), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(usual.mean, usual.std),
    ])  # fmt: skip
    caught = []
    net.avgpool.register_forward_hook(lambda *given: caught.append(given[2]))
    photos.SIZE = 224  # the fixture puts it back
    with torch.inference_mode():
        x = torch.as_tensor(images.copy()).permute(0, 3, 1, 2) / 255
        net(prepare(x))
    np.testing.assert_allclose(
        photos.network(path)(images), caught[0].flatten(1), rtol=1e-3, atol=1e-4
    )


@pytest.mark.slow
def test_the_command_prepares_everything(warm, home, small):
    """Then both parts can be loaded, each picture with its own features and label."""
    done = run_tool(warm, home)
    assert done.returncode == 0, done.stderr
    assert "features of 100 train, 20 test pictures of 4 classes" in done.stdout
    assert photos.prepared("cifar100") and not photos.prepared("cifar10")
    parts, classes = photos.load("cifar100")
    values, arrays, names = small[1]["cifar100"]
    assert classes == names
    run = photos.network(home.data / small[2])
    for part, (images, labels) in arrays.items():
        features, found, pictures = parts[part]
        assert (features.shape, features.dtype) == ((len(labels), 512), np.float32)
        np.testing.assert_array_equal(found, labels)
        np.testing.assert_array_equal(pictures, images)
        np.testing.assert_allclose(features[::7], run(images[::7]), atol=1e-4)
    asked = len(home.asked)
    again = run_tool(warm, home)
    assert again.returncode == 0 and len(home.asked) == asked, "all was there"
    weights = small[2]
    expected = {"cifar100.npz", "cifar100-resnet34.npz", values["filename"], weights}
    assert contents(home.data) == expected


def prepare():
    return photos.prepare("cifar100", bar=False)


@pytest.mark.slow
def test_cut_off_three_times_it_goes_on_three_times(home, small):
    """Each call ends with a sentence; each next one asks only for the rest."""
    size = (small[0] / "cifar-100-python.tar.gz").stat().st_size
    for n in (0.3, 0.3, 0.2):
        home.faults = [("cut", int(n * size)), *3 * [("cut", 0)]]
        message = (
            r"^could not get cifar-100-python\.tar\.gz \(\d\.\d MB are kept\): http\S+ "
            r"broke off \(.*\): try again, name a mirror in DATA_MIRRORS, or put the "
            r"file \(md5:\w+\) into \S+$"
        )
        with pytest.raises(OSError, match=message):
            prepare()
        assert contents(home.data) == {"cifar-100-python.tar.gz.part"}
    starts = [int(wanted[6:-1]) for _, wanted in home.asked if wanted]
    assert starts == sorted(starts) and starts[-1] > 0.75 * size
    prepare()


@pytest.mark.slow
def test_killed_while_it_extracts_it_goes_on_where_it_was(warm, home):
    """Three kills; every batch is computed once, and the features are the same."""
    whole = prepare().read_bytes()
    photos.features_file("cifar100").unlink()
    computed = 0
    for batches in (2, 4, 1):
        done = run_tool(warm, home, kill=batches)
        assert done.returncode == -signal.SIGKILL
        computed += done.stderr.count("batch")
        assert not photos.prepared("cifar100")
    done = run_tool(warm, home, kill=1000)
    assert done.returncode == 0, done.stderr
    computed += done.stderr.count("batch")
    assert computed == -(-100 // 16) + -(-20 // 16)
    assert photos.features_file("cifar100").read_bytes() == whole
    assert not list(home.data.glob("*.parts"))


@pytest.mark.slow
def test_a_damaged_batch_is_made_again(home, monkeypatch):
    """And batches of other weights are not used."""
    make_network, left, made = photos.network, [3], []

    def network(path):
        run = make_network(path)

        def counted(images):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            made.append(len(images))
            return run(images)

        return counted

    monkeypatch.setattr(photos, "network", network)
    with pytest.raises(KeyboardInterrupt):
        prepare()
    parts = photos.features_file("cifar100").with_suffix(".parts")
    first = parts / "train-000000.npy"
    good = first.read_bytes()
    first.write_bytes(good[:-1000])
    left[0] = 2
    with pytest.raises(KeyboardInterrupt):
        prepare()
    assert first.read_bytes() == good and len(made) == 5  # that one, and one more
    (parts / "inputs.json").write_text('{"weights": "others"}')
    left[0] = 1000
    prepare()
    assert len(made) == 5 + 9


@pytest.mark.slow
def test_a_lying_checksum_is_one_sentence(home):
    home.faults = [("lie", 5_000)]
    message = (
        r"^could not get cifar-100-python\.tar\.gz: http\S+ gave another file: its md5 "
        r"is \w{32}, expected md5:\w{32}: try again, "
    )
    with pytest.raises(OSError, match=message):
        prepare()
    assert contents(home.data) == set()


@pytest.mark.slow
def test_a_mirror_is_asked_first(home, small, monkeypatch):
    """Its folder may have any name; the home of the data is left in peace."""
    with small_cifar.serving(small[0]) as mirror:
        mirrors = f"http://127.0.0.1:9/none {mirror.url}/a/b/"
        monkeypatch.setenv("DATA_MIRRORS", mirrors)
        prepare()
        assert len(mirror.asked) == 2
    assert not home.asked


@pytest.mark.slow
def test_archive_and_weights_put_there_by_hand_need_no_network(home, small):
    """Under whatever name; and so does a folder that is already unpacked."""
    home.data.mkdir()
    shutil.copy(small[0] / "cifar-100-python.tar.gz", home.data / "from a friend.gz")
    shutil.copy(small[0] / small[2], home.data)
    prepare()
    shutil.unpack_archive(small[0] / "cifar-10-python.tar.gz", home.data)
    photos.write_images("cifar10", bar=False)
    assert (home.data / "cifar-10-batches-py").is_dir(), "what was there stays"
    assert not home.asked


STAGES = ["archive", "unpacked", "weights", "features"]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mounts a tmpfs")
def test_a_full_disk_is_one_sentence_at_every_stage(home, small, tmp_path):
    """Real small file systems; nothing half-written stays on them."""
    sizes = {
        "archive": (small[0] / "cifar-100-python.tar.gz").stat().st_size,
        "unpacked": 380_000,
        "weights": (small[0] / small[2]).stat().st_size,
    }
    disks, mounts = [], []
    for place, stage in enumerate(STAGES):
        size = sum(sizes[name] for name in STAGES[:place]) + 120_000
        for told in (True, False):
            disk = tmp_path / f"{stage}-{told}"
            disk.mkdir()
            mounts.append(f"mount -t tmpfs -o size={size >> 10}k tmpfs '{disk}'")
            disks.append((str(disk), told))

    words = " ".join(f"'{w}'" for w in [sys.executable, *stand_ins(home, disks=disks)])
    command = in_a_namespace(" && ".join([*mounts, words]))
    done = subprocess.run(command, capture_output=True, text=True)
    if "mount" in done.stderr:
        pytest.skip("this machine lets nobody mount a small file system")
    found = json.loads(done.stdout)
    names = ["cifar-100-python.tar.gz", "cifar100.npz", small[2]]
    for (disk, told), (said, left) in zip(disks, found, strict=True):
        assert re.fullmatch(
            r"no space left in \S+: [\d.]+ MB are needed, [\d.]+ MB are free: make "
            r"room there, or name another folder in DATA_FOLDER",
            said,
        ), (disk, said)
        place = STAGES.index(Path(disk).name.split("-")[0])
        parts = {"cifar100-resnet34.parts"} if place == 3 else set()  # whole batches
        assert set(left) - parts == set(names[:place]), (disk, told)


def test_pictures_that_are_not_there_are_a_sentence(home):
    with pytest.raises(
        FileNotFoundError, match=r"no cifar100\.npz in .*: run `make data`"
    ):
        photos.load("cifar100")
    with pytest.raises(ValueError, match="unknown data set 'imagenet'"):
        photos.load("imagenet")


@pytest.fixture(scope="module")
def ready(small, tmp_path_factory):
    """Prepared files with made-up features, to be copied and damaged."""
    folder = tmp_path_factory.mktemp("ready")
    draw = np.random.default_rng(0)
    arrays = {"classes": np.array(["a", "b"])}
    rows = {}
    for part, n in {"train": 9, "test": 4}.items():
        images = draw.integers(256, size=(n, 32, 32, 3), dtype=np.uint8)
        arrays |= {f"{part}_images": images, f"{part}_labels": np.arange(n) % 2}
        rows[part] = draw.normal(size=(n, 512)).astype(np.float32)
    about = json.dumps(photos.inputs(arrays, b"weights"))
    photos.write_npz(folder / "cifar100.npz", arrays)
    photos.write_npz(
        folder / "cifar100-resnet34.npz", rows | {"inputs": np.array(about)}
    )
    return folder, arrays, rows


def change(**arrays):
    """Replace arrays of the file of features."""

    def damage(path):
        with np.load(path) as found:
            kept = dict(found)
        photos.write_npz(path, kept | arrays)

    return damage


def cut_short(path):
    path.write_bytes(path.read_bytes()[:9_000])


def write_nonsense(path):
    path.write_bytes(b"oh")


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[5_000] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "cut short": (cut_short, "is damaged"),
    "no archive": (write_nonsense, "is damaged"),
    "a bit": (flip_a_bit, "is damaged"),
    "another shape": (
        change(test=np.zeros((4, 511), np.float32)),
        r"expected float32 \(4, 512\), got float32 \(4, 511\)",
    ),
    "another dtype": (
        change(test=np.zeros((4, 512))),
        r"expected float32 \(4, 512\), got float64 \(4, 512\)",
    ),
    "not finite": (
        change(test=np.full((4, 512), np.nan, np.float32)),
        "some features are not finite",
    ),
    "more arrays": (change(more=np.zeros(1)), "holds .*'more'"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damaged_features_are_refused_in_a_sentence(ready, tmp_path, monkeypatch, case):
    """The file is named, and what to do."""
    folder = tmp_path / "data"
    shutil.copytree(ready[0], folder)
    monkeypatch.setenv("DATA_FOLDER", str(folder))
    np.testing.assert_array_equal(
        photos.load("cifar100")[0]["test"][0], ready[2]["test"]
    )
    damage, message = DAMAGE[case]
    path = folder / "cifar100-resnet34.npz"
    damage(path)
    with pytest.raises(ValueError, match=message) as caught:
        photos.load("cifar100")
    assert str(path) in str(caught.value)
    assert str(caught.value).endswith("remove it and run `make data` again")


def test_features_of_other_pictures_are_refused(ready, tmp_path, monkeypatch):
    folder = tmp_path / "data"
    shutil.copytree(ready[0], folder)
    monkeypatch.setenv("DATA_FOLDER", str(folder))
    others = {**ready[1], "test_images": 255 - ready[1]["test_images"]}
    photos.write_npz(folder / "cifar100.npz", others)
    with pytest.raises(ValueError, match=r"resnet34\.npz is of other pictures than"):
        photos.load("cifar100")


def test_pages_take_photos_when_they_are_prepared(ready, tmp_path, monkeypatch):
    """Unless a setting says otherwise."""
    monkeypatch.delenv("SETS_SOURCE", raising=False)
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path))
    assert sets.source() == "digits"
    monkeypatch.setenv("DATA_FOLDER", str(ready[0]))
    assert sets.source() == "cifar100"
    monkeypatch.setenv("SETS_SOURCE", "digits")
    assert sets.source() == "digits"
    monkeypatch.setenv("SETS_SOURCE", "letters")
    with pytest.raises(ValueError, match="unknown source 'letters'"):
        sets.source()


def test_the_photos_come_centred_and_divided(ready, monkeypatch):
    """Three parts; the mean of those to train on is subtracted from all."""
    monkeypatch.setenv("DATA_FOLDER", str(ready[0]))
    parts, _ = sets.cifar100(seed=0)
    raw, _ = photos.load("cifar100")
    assert len(parts["train"]) + len(parts["validation"]) == len(raw["train"][0])
    np.testing.assert_allclose(parts["train"].features.mean(axis=0), 0, atol=1e-5)
    steps = np.diff(parts["test"].features, axis=0)
    shrunk = np.diff(raw["test"][0], axis=0)
    ratio = shrunk.std() / steps.std()
    np.testing.assert_allclose(steps * ratio, shrunk, rtol=1e-3, atol=1e-5)
