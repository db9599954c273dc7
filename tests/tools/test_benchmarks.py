"""The comparison with the usual ways runs, and compares the same trainings."""

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode
from torchvision.transforms import v2

import data as photos
import pages

sys.path.insert(0, str(pages.ROOT))

from benchmarks import (
    block_of_today,
    block_seeds,
    finetune_seeds,
    generation,
    generation_torch,
    losses_torch,
    measure,
    photo_sets,
    pretraining,
    tasks,
    usual,
    usual_torch,
)
from benchmarks import photos as hour
from benchmarks import run as command

from helpers import torch as model_torch
from helpers.data import text
from helpers.data.byte_pairs import BytePairs
from helpers.engine.settings import Settings
from helpers.engine.weights import count_parameters, save_weights


def run(folder, **options):
    """The command with one pair: record and rows of the table, as it wrote them.

    No time is asserted, so JAX compiles quickly instead of compiling quick code.
    """
    options = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "benchmarks.run", "--pairs=1", *options]
    options = {"cwd": pages.ROOT, "stdout": subprocess.PIPE, "text": True}
    options["env"] = os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    command += ["--output", folder]
    printed = subprocess.run(command, check=True, **options).stdout
    (text,), (record,) = (list(folder.glob(f"*.{kind}")) for kind in ("md", "json"))
    text, record = text.read_text("utf-8"), json.loads(record.read_text("utf-8"))
    assert text in printed
    return record, rows_of(text)


def rows_of(text):
    """Rows of a table in Markdown, as dictionaries."""
    lines = [line.strip("| ") for line in text.splitlines() if "|" in line]
    head, _, *rows = [line.split(" | ") for line in lines]
    return [dict(zip(head, row, strict=True)) for row in rows]


@pytest.mark.slow
def test_the_command_writes_a_table_of_both_trainings(tmp_path):
    """One pair of three updates."""
    record, (row,) = run(tmp_path, task="reverse", framework="jax", updates=3)
    usual, fit = (record["measured"][0]["pairs"][0][way] for way in ("usual", "fit"))
    assert usual["updates"] == fit["updates"] == 3
    assert {"device", "python", "jax", "flax", "torch"} <= set(record["about"])
    assert (row["task"], row["framework"]) == ("reverse", "jax")
    ratio = usual["seconds"] / fit["seconds"]
    assert float(row["usual / fit"]) == pytest.approx(ratio, abs=0.006)
    assert row["loss usual"] == f"{usual['loss']:.4f}"


@pytest.mark.slow
def test_the_command_writes_a_table_of_all_ways_to_generate(tmp_path):
    """Real models; two tokens after two."""
    record, rows = run(tmp_path, task="generation", framework="torch", length=2)
    cases = ["chapter, 1", "chapter, 16", "larger, 1", "larger, 16"]
    assert [row["model, texts"] for row in rows] == cases
    assert_ratios_are_of_the_seconds(record, rows)


def assert_ratios_are_of_the_seconds(record, rows):
    """A way that the framework lacks has none."""
    (pair,) = record["measured"][0]["pairs"]
    for row, way in itertools.product(rows, ("without cache", "Python loop")):
        if way not in pair:
            assert row[f"{way} / book"] == "–"
            continue
        theirs, ours = (pair[w]["seconds"][row["model, texts"]] for w in (way, "book"))
        assert float(row[f"{way} / book"]) == pytest.approx(theirs / ours, abs=0.006)
        assert float(row["book ms/token"]) == pytest.approx(1000 * ours, abs=0.006)


def one_window(settings, tokens=tasks.tokens):
    """A text as long as a window, so that each window that is drawn is this one."""
    train, validation = tokens(settings)
    return [train[: settings.length + 1], validation]


@pytest.fixture
def same_batches(monkeypatch):
    """Small tasks whose batches hold all examples, unmoved: any order is the same."""
    sizes = {"n_train": 20, "batch_size": 20, "epochs": 3, "warmup": 2, "m": 8, "f": 11}
    sizes |= {"learning_rate": 1e-3, "n_heads": 2, "n_blocks": 1}
    of_text = {"length": 7, "n_tokens": 110}
    for task, more in {"reverse": {}, "text": of_text, "vision": {}}.items():
        short = replace(tasks.TASKS[task], **sizes | more)
        monkeypatch.setitem(tasks.TASKS, task, short)
    monkeypatch.setattr(tasks, "VALIDATION_PHOTOS", 20)
    monkeypatch.setattr(tasks, "tokens", one_window)
    monkeypatch.setattr(tasks, "in_whole_pixels", lambda _, *batch, **options: batch)
    for name in ("RandomCrop", "RandomHorizontalFlip"):
        monkeypatch.setattr(v2, name, lambda *_, **options: v2.Identity())

    def in_this_process(*args, **options):
        for name in ("num_workers", "persistent_workers", "multiprocessing_context"):
            options.pop(name, None)
        return torch.utils.data.DataLoader(*args, **options)

    monkeypatch.setattr(usual, "DataLoader", in_this_process)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reverse", "text", "vision"])
@pytest.mark.parametrize("side", pages.SIDES)
def test_both_ways_do_the_same_training(side, task, same_batches, tmp_path):
    """From the same weights and on the same batches, every update has the same numbers.

    In their benchmark proper the two ways shuffle differently.
    """
    cases = {way: measure.Case(task, side) for way in measure.WAYS}
    usual, fit = (case.train(way, tmp_path / way)() for way, case in cases.items())
    if task == "vision":
        for case in cases.values():
            case.files.cleanup()
    for name in ("loss", "accuracy", "learning_rate", "grad_norm"):
        assert len(fit[name]) == 3
        np.testing.assert_allclose(usual[name], fit[name], rtol=1e-4, err_msg=name)
    for name in ("validation_loss", "validation_accuracy"):
        np.testing.assert_allclose(usual[name], fit[name], rtol=1e-4, err_msg=name)


@pytest.mark.slow
def test_every_way_of_jax_to_generate_is_in_the_table(monkeypatch):
    """Each generates the same tokens, or ``measure`` would stop."""
    monkeypatch.setattr(generation, "CASES", {"small, 3": SMALL})
    pair = generation.measure("jax", length=5)
    assert set(pair) == {"book", "without cache", "Python loop"}
    text, record = command.report([("generation", "jax", [pair])], datetime.now())
    (row,) = rows_of(text)
    assert row["model, texts"] == "small, 3"
    assert_ratios_are_of_the_seconds(record, [row])


SMALL_SIZES = {"n_blocks": 1, "m": 8, "n_heads": 2, "f": 16, "length": 13}
SMALL = replace(generation.CHAPTER, **SMALL_SIZES), 3, 0, 0


@pytest.fixture
def small(monkeypatch):
    """A small model generates: the ways, and their names in the order of the calls."""
    monkeypatch.setattr(generation, "CASES", {"small, 3": SMALL})
    calls = []

    def way(name, generate):
        return lambda *args: (calls.append(name), generate(*args))[1]

    ways = {name: way(name, each) for name, each in generation_torch.WAYS.items()}
    monkeypatch.setattr(generation_torch, "WAYS", ways)
    return ways, calls


def test_ways_are_timed_in_turn_after_their_texts_were_compared(small, monkeypatch):
    """A call that takes 20 seconds for five new tokens takes 4 for each."""
    _, calls = small

    def shortest(_, way, *args):
        way(*args)
        return 20

    monkeypatch.setattr(generation, "shortest", shortest)
    found = [generation.measure("torch", place, length=5) for place in (0, 1)]
    order = ["book", "without cache"]
    assert calls == [*order, *order, *order, *order[::-1]]
    for way in order:
        assert all(pair[way]["seconds"] == {"small, 3": 4} for pair in found)


def test_a_way_that_generates_other_tokens_is_refused(small):
    """Here one that forgets all but the last three tokens."""
    ways, calls = small
    usual = generation_torch.without_cache
    ways["without cache"] = lambda model, x, n: usual(model, x[:, -3:], n)
    with pytest.raises(AssertionError, match="small, 3: without cache"):
        generation.measure("torch", length=5)
    assert calls == ["book"], "nothing may be timed before"


def written_out(model):
    """The model with attention written out: a fused kernel computes scores twice."""
    return lambda x: model(x, return_maps=True)[0]


@pytest.mark.parametrize("tied", [True, False])
def test_the_formula_counts_the_operations_that_pytorch_counts(tied):
    """Of forward and backward pass of the language model, exactly."""
    settings = replace(tasks.TASKS["text"], tied=tied, batch_size=3, length=7)
    model = model_torch.build(model_torch.LanguageModel, **settings.model)
    rows = torch.zeros(settings.batch_size, settings.length + 1, dtype=torch.int32)
    with FlopCounterMode(display=False) as counted:
        losses_torch.text(written_out(model), rows)[0].backward()
    case = SimpleNamespace(settings=settings, model=model)
    assert measure.flops(case) == counted.get_total_flops()


@pytest.mark.parametrize("pool", ["mean", "token"])
def test_with_photos_too(pool):
    """No gradient of the pixels, and one row of outputs for each photo."""
    settings = replace(tasks.TASKS["vision"], pool=pool, batch_size=3)
    model = model_torch.build(model_torch.VisionTransformer, **settings.model)
    images, labels = torch.rand(3, 3, 32, 32), torch.zeros(3, dtype=torch.int64)
    with FlopCounterMode(display=False) as counted:
        losses_torch.vision(written_out(model), images, labels)[0].backward()
    case = SimpleNamespace(settings=settings, model=model)
    assert measure.flops(case) == counted.get_total_flops()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Photos of the benchmark in a folder and as arrays, with their settings."""
    settings = replace(tasks.TASKS["vision"], n_train=130, epochs=99)
    folder = tmp_path_factory.mktemp("photos")
    return settings, folder, tasks.photos(settings, folder)


def test_both_ways_have_the_same_photos(files, monkeypatch):
    """Those for validation as they are; of the others each once in an epoch."""
    settings, folder, (train, validation) = files
    assert [len(labels) for _, labels in (train, validation)] == [130, 1_000]
    assert train[0].dtype == np.uint8 and train[0].shape == (130, 32, 32, 3)
    monkeypatch.setattr(usual, "WORKERS", 1)
    last = usual_torch.to_tensor()
    context = {"multiprocessing_context": "forkserver"}  # JAX has threads here
    loaders = usual.loaders("vision", settings, folder, last, **context)
    batches, given = map(list, loaders)
    assert [len(labels) for _, labels in batches] == [64, 64]
    assert all(images.shape == (64, 3, 32, 32) for images, _ in batches)
    images, labels = (torch.cat(x).numpy() for x in zip(*given, strict=True))
    order = np.argsort(validation[1], kind="stable")  # files are listed by class
    np.testing.assert_array_equal(labels, validation[1][order])
    pixels = np.moveaxis(images, 1, -1) * 255
    np.testing.assert_allclose(pixels, validation[0][order], atol=1e-3)


def test_in_jax_the_usual_way_has_the_same_pixels(files):
    """One photo at a time, with channels last."""
    settings, folder, (_, validation) = files
    _, given = usual.photos(folder, settings, [usual.to_array])
    image, label = given[0]
    assert image.dtype == np.float32
    np.testing.assert_allclose(image * 255, validation[0][0], atol=1e-3)
    assert label == validation[1][0] == 0
    train = next(usual.photos(folder, settings, [usual.to_array]))
    seen = [train[0][0] for _ in range(40)]
    assert all(x.shape == (32, 32, 3) and 0 <= x.min() <= x.max() <= 1 for x in seen)
    assert len({x.tobytes() for x in seen}) > 20, "cropped and mirrored by chance"


def test_photos_are_moved_by_whole_pixels_and_all_moves_are_equally_likely():
    """A white pixel shows where each photo has come to."""
    draw = np.random.default_rng(0)
    n, (pixels, flip) = 20_000, tasks.MOVES.values()
    images = torch.zeros(n, 13, 13, 1)
    images[:, 6, 2] = 1.0
    uniforms = torch.as_tensor(draw.random((n, 8), dtype=np.float32))
    labels = torch.arange(n)
    moved, same = tasks.in_whole_pixels(
        uniforms, images, labels, move=model_torch.augment, pixels=pixels, flip=flip
    )
    assert same is labels
    assert set(moved.unique().tolist()) == {0, 1}, "nothing is blurred"
    down = torch.nonzero(moved)[:, 1] - 6
    counts = torch.bincount(down + pixels)
    assert len(counts) == 2 * pixels + 1
    np.testing.assert_allclose(counts / counts.sum(), 1 / 9, atol=0.02)
    right = (torch.nonzero(moved)[:, 2] > 6).float().mean()  # mirrored, and not lost
    assert abs(right - 4 / 9 * 6 / 7) < 0.02


def test_cpu_seconds_of_a_resumed_training_are_those_of_all_its_epochs(
    tmp_path, monkeypatch
):
    """An epoch that was interrupted counts once: the second time."""
    now = SimpleNamespace(time=100.0)
    monkeypatch.setattr(hour.time, "process_time", lambda: now.time)
    first = hour.Clock(tmp_path / "cpu.json")
    now.time += 1  # to load
    first.until(0)
    first.until(0)
    for seconds, epoch in ((5, 1), (7, 2)):
        now.time += seconds
        first.until(epoch)
    assert first.known[1] == first.known[0] + 5 and first.known[2] == first.known[1] + 7
    now.time = 3.0  # another process, since epoch 2 was interrupted
    second = hour.Clock(tmp_path / "cpu.json")
    second.until(0)
    now.time += 20  # to load
    assert second.until(2) == first.known[2]
    now.time += 6
    assert second.until(3) == first.known[2] + 6
    assert hour.Clock(tmp_path / "cpu.json").until(3) == second.until(3)


@pytest.fixture
def six(tmp_path, monkeypatch):
    """The command on 180 photos of noise, three updates in each of three epochs."""
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path / "data"))
    monkeypatch.setenv("TQDM_DISABLE", "1")
    draw = np.random.default_rng(0)
    for row in range(180):
        path = tmp_path / "six" / f"{row % 6}" / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = draw.integers(256, size=(32, 32, 3), dtype=np.uint8)
        Image.fromarray(noise).save(path)
    photos.prepare_images(str(tmp_path / "six"))
    monkeypatch.setattr(tasks, "PHOTOS", tasks.PHOTOS | {"batch_size": 40, "m": 16})
    arguments = ["--framework=torch", "--epochs=3", f"--photos={tmp_path / 'six'}"]
    arguments += [f"--runs={tmp_path / 'runs'}", f"--output={tmp_path / 'out'}"]
    monkeypatch.setattr(sys, "argv", ["photos", *arguments, "--shared"])
    return tmp_path / "out"


def test_a_training_on_photos_is_recorded_and_resumed(six, monkeypatch):
    """Stopped in the second epoch; at the end, the record has all three, once."""
    whole = hour.shuffled

    def stopping(settings):
        def order(epoch):
            if epoch == 1:
                raise KeyboardInterrupt
            return whole(settings)(epoch)

        return order

    monkeypatch.setattr(hour, "shuffled", stopping)
    with pytest.raises(KeyboardInterrupt):
        hour.main()
    assert not six.exists()
    monkeypatch.setattr(hour, "shuffled", whole)
    hour.main()
    (path,) = six.glob("*-six.json")
    record = json.loads(path.read_text("utf-8"))
    assert record["task"] == "six" and record["about"]["shared"] is True
    assert {"device", "cpu", "torch", "date"} <= set(record["about"])
    assert record["about"]["framework"] == "torch"
    assert record["settings"]["n_classes"] == 6 and record["settings"]["m"] == 16
    assert record["augmentation"] == {"pixels": 4, "flip": True}
    assert [one["epoch"] for one in record["history"]] == [1, 2, 3]
    assert [one["updates"] for one in record["history"]] == [3, 6, 9]
    assert record["updates"] == 9 == 3 * (record["settings"]["n_train"] // 40)
    assert record["seconds"] == record["history"][-1]["seconds"]
    assert record["cpu_seconds"] > 0
    assert 0 <= record["test_accuracy"] <= 1
    assert set(record["history"][0]) == {
        "epoch", "updates", "seconds", "loss", "validation_accuracy",
    }  # fmt: skip
    text = path.with_suffix(".md").read_text("utf-8")
    assert f"* test accuracy: {record['test_accuracy']:.2%}," in text
    assert text.count("\n| ") == 3 + 2
    hour.main()  # finished: only reported again
    again = json.loads(path.read_text("utf-8"))
    for record_of in (record, again):
        del record_of["about"]["date"]
    assert again == record


def test_features_of_photos_do_not_depend_on_brightness_and_contrast():
    """Of a photo that is darker, and of one with less contrast."""
    draw = np.random.default_rng(0)
    images = draw.integers(60, 160, size=(40, 12, 12, 3), dtype=np.uint8)
    with pytest.MonkeyPatch.context() as small:
        small.setattr(photo_sets, "CENTRES", 8)
        learned = photo_sets.Dictionary(images, n_features=5)
    found = learned(images)
    np.testing.assert_allclose(found, learned.training, rtol=1e-4, atol=1e-3)
    assert found.shape == (40, 5) and found.std() > 0.1
    np.testing.assert_allclose(learned(images - 60), found, rtol=1e-4, atol=1e-3)
    gap = np.abs(learned(images[:20] // 2 + 30) - found[:20]).mean()
    assert gap < 0.1 * np.abs(learned(images[20:]) - found[:20]).mean()


def test_a_training_on_sets_of_photos_is_recorded(six, monkeypatch):
    """All photos are noise: the record has every figure, whatever it is."""
    monkeypatch.setattr(photo_sets, "CENTRES", 8)
    small = replace(photo_sets.Cifar100(), n_features=20, m=16, f=16, n_blocks=1)
    sizes = {"batch_size": 40, "warmup": 2, "n_test": 30, "n_validation": 20}
    sizes |= {"set_size": 3}
    monkeypatch.setattr(
        photo_sets, "Cifar100", lambda **changes: replace(small, **sizes | changes)
    )
    photo_sets.main()
    (path,) = six.glob("*-six-sets.json")
    record = json.loads(path.read_text("utf-8"))
    assert record["settings"]["n_classes"] == 6 and record["updates"] == 9
    assert [one["epoch"] for one in record["history"]] == [1, 2, 3]
    for kind in ("accuracy", "baseline"):
        assert set(record[kind]) == {"train", "validation", "test"}
        assert all(0 <= share <= 1 for share in record[kind].values())
    assert 0 <= record["linear"] <= 1 and "8 centres" in record["features"]
    text = path.with_suffix(".md").read_text("utf-8")
    assert f"{record['accuracy']['test']:.2%}" in text
    photo_sets.main()  # finished: only reported again
    again = json.loads(path.read_text("utf-8"))
    assert again["accuracy"] == record["accuracy"]


def test_the_windows_of_both_ways_are_those_of_the_chapter():
    """Single windows at any place of the text; for validation, one after the other."""
    settings = replace(tasks.TASKS["text"], length=7, n_train=640)
    train, validation = np.arange(40), np.arange(3 * 7 + 1)
    loaders = usual.loaders("text", settings, (train, validation))
    drawn, given = ([rows for (rows,) in loader] for loader in loaders)
    assert len(drawn) == settings.updates_per_epoch == 40
    drawn, given = np.concatenate(drawn), np.concatenate(given)
    np.testing.assert_array_equal(given, text.windows(validation, settings.length))
    assert drawn.shape == (640, settings.length + 1)
    assert (np.diff(drawn) == 1).all()
    assert {drawn.min(), drawn.max()} == {0, 39}, "a window is never drawn"


def test_the_sets_of_both_ways_are_of_the_size_of_cifar_100():
    """Nine of a class and an odd one, drawn at once for ``fit``, else one by one."""
    settings = tasks.TASKS["anomaly"]
    assert (settings.n_train, settings.batch_size, settings.epochs) == (45_000, 64, 1)
    assert tasks.shortened(settings, 70_300).epochs == 100
    short = tasks.shortened(settings, 20)
    train, validation = tasks.features(short)
    assert train.shape == (20 * 64, 512)
    one_by_one = usual.Sets(train, short)
    drawn = tasks.batches_of_sets(short)(0).reshape(-1, 10)
    rows = [np.append(one_by_one.draw(odd), odd) for odd in range(300)]
    for sets in (drawn, rows, tasks.validation_sets(short)):
        kinds = tasks.classes(len(validation), short)[np.array(sets)]
        assert (kinds[:, :-1] == kinds[:, :1]).all()
        assert (kinds[:, -1] != kinds[:, 0]).all()


@pytest.mark.parametrize(
    "framework", ["torch", pytest.param("jax", marks=pytest.mark.slow)]
)
def test_blocks_are_compared_with_several_seeds(framework, tmp_path, monkeypatch):
    """Of each step the figures of all seeds; what has ended is not trained again."""
    small = replace(block_seeds.SETTINGS, m=16, n_blocks=1, n_tokens=110, length=16)
    monkeypatch.setattr(block_seeds, "SETTINGS", small)
    monkeypatch.setattr(block_seeds, "ProcessPoolExecutor", ThreadPoolExecutor)
    parts = {name: part[:20_000] for name, part in text.load().items()}
    monkeypatch.setattr(text, "load", lambda: parts)
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    folder = tmp_path / "runs"
    options = ["--framework", framework, "--seeds", "3", "5", "--updates", "2"]
    options += ["--folder", f"{folder}", "--output", f"{tmp_path / 'out'}"]
    monkeypatch.setattr(sys, "argv", ["block_seeds", *options])
    block_seeds.main()
    (path,) = (tmp_path / "out").glob(f"*-block-seeds-{framework}.json")
    record = json.loads(path.read_text("utf-8"))
    assert record["task"] == "block-seeds" and record["seeds"] == [3, 5]
    assert record["about"]["framework"] == framework
    assert [*record["figures"]] == [*block_seeds.STEPS]
    for one in record["figures"].values():
        first, second = one["bits"]
        assert 0 < first < 10 and first != second
    cache = [one["numbers of the cache, a token"] for one in record["figures"].values()]
    assert cache == [32] * 4 + [16] * 2
    rows = rows_of(path.with_suffix(".md").read_text("utf-8"))
    assert [row["with"] for row in rows] == [*block_seeds.STEPS]
    assert all(float(row["least"]) <= float(row["bits: mean"]) for row in rows)
    assert len([*folder.iterdir()]) == 2 * len(block_seeds.STEPS)
    monkeypatch.setattr(block_seeds, "trained", None)
    block_seeds.main()
    assert json.loads(path.read_text("utf-8"))["figures"] == record["figures"]


@pytest.mark.parametrize(
    "framework", ["torch", pytest.param("jax", marks=pytest.mark.slow)]
)
def test_times_of_two_blocks_come_in_pairs(framework, tmp_path, monkeypatch):
    """Each pair has both blocks, in the other order than the one before."""
    sizes = {"m": 16, "n_blocks": 1, "n_tokens": 110, "max_length": 16, "f": 16}
    small = replace(
        block_of_today.SETTINGS, m=16, n_tokens=110, length=16, n_train=32, epochs=2
    )
    blocks = {name: one | sizes for name, one in block_of_today.BLOCKS.items()}
    for name, value in {
        "SETTINGS": small,
        "BLOCKS": blocks,
        "PROMPT": 8,
        "NEW": 4,
    }.items():
        monkeypatch.setattr(block_of_today, name, value)
    of = block_of_today.seconds
    monkeypatch.setattr(block_of_today, "seconds", lambda *given: of(*given, least=0.1))
    options = ["--framework", framework, "--pairs", "2", "--output", f"{tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["block_of_today", *options])
    block_of_today.main()
    (path,) = tmp_path.glob(f"*-block-of-today-{framework}.json")
    first, second = json.loads(path.read_text("utf-8"))["pairs"]
    assert [*first] == ["GPT-2", "today"] and [*second] == ["today", "GPT-2"]
    assert all(x > 0 for pair in (first, second) for x in pair["today"].values())
    rows = rows_of(path.with_suffix(".md").read_text("utf-8"))
    assert [row["time of"] for row in rows] == ["token, 1", "token, 16", "update"]


def test_few_labels_are_recorded_by_way_and_number(tmp_path, monkeypatch):
    """Five figures of each; every rate and seed is that of the call."""
    test = [(np.ones((1, 2), int), np.zeros(1, int)), "test lines", "test labels"]

    class Fitted:
        """Its score is known, if it is taken on the test lines."""

        def __init__(self, score, *given):
            self.known, self.given = score, given

        def score(self, *given):
            assert [*map(str, given)] == [*map(str, self.given)]
            return self.known

    def adapt(way, rows, rate, seed):
        return {"a": 0.1, "b": 0.2}[way] + rate + len(rows) / 1000 + seed / 100

    page = SimpleNamespace(
        RATES={"a": 0.01, "b": 0.03}, few=lambda n, seed: range(4 * n), adapt=adapt,
        cross_entropy=None, evaluate=lambda model, *_: {"accuracy": model},
        baseline=lambda rows: Fitted(len(rows) / 1000, *test[1:]),
        probe=lambda rows: Fitted(len(rows) / 500, 2 * test[0][0], test[2]),
        test=test[0], test_lines=test[1], test_labels=test[2], vectors=lambda x: 2 * x,
    )  # fmt: skip
    monkeypatch.setattr(finetune_seeds, "names_of_page", lambda framework: page)
    options = ["--framework", "torch", "--seeds", "1", "2", "--numbers", "5", "20"]
    options += ["--output", f"{tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["finetune_seeds", *options])
    finetune_seeds.main()
    (path,) = tmp_path.glob("*-finetune-seeds-torch.json")
    record = json.loads(path.read_text("utf-8"))
    assert record["numbers"] == [5, 20] and record["seeds"] == [1, 2]
    figures = record["figures"]
    ways = "TF-IDF", "probe", "a", "b"
    assert [*figures] == [f"{way} {n}" for n in (5, 20) for way in ways]
    np.testing.assert_allclose(figures["b 20"], [0.32, 0.33])
    assert figures["TF-IDF 5"] == [0.02, 0.02] and figures["probe 5"] == [0.04, 0.04]
    (row,) = [
        row for row in rows_of(path.with_suffix(".md").read_text("utf-8"))
        if row["way, lines a language"] == "b 20"
    ]  # fmt: skip
    assert row["mean"] == "32.5%"


def test_settings_are_tried_on_training_lines_that_were_not_used(monkeypatch, capsys):
    """The probe's C and the rates: seeds of their own, the rest of the lines."""

    def adapt(way, rows, rate, seed):
        assert [*rows] == [0, 1, 2, 3] and seed in (101, 102)
        return rate

    def evaluate(rate, loss_fn, data):
        assert [*data[0]] == [14, 15] and [*data[1]] == [24, 25]
        return {"accuracy": rate}

    def probe(rows, C):
        def score(vectors, labels):
            assert [*vectors] == [114, 115] and [*labels] == [24, 25]
            return C / 100

        return SimpleNamespace(score=score)

    page = SimpleNamespace(
        RATES={"a": 0}, few=lambda n, seed: range(4 * n), adapt=adapt, probe=probe,
        cross_entropy=None, evaluate=evaluate, vectors=lambda tokens: tokens + 100,
        lines=np.arange(6), labels=np.arange(20, 26), as_tokens=lambda x: x + 10,
    )  # fmt: skip
    monkeypatch.setattr(finetune_seeds, "names_of_page", lambda framework: page)
    options = ["--framework", "torch", "--seeds", "1", "2", "--numbers", "1", "--rates"]
    monkeypatch.setattr(sys, "argv", ["finetune_seeds", *options])
    finetune_seeds.main()
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("1 probe 0.01: 0.000") and first.endswith("10: 0.100")
    assert second.startswith("1 a 0.0003: 0.000") and second.endswith("0.03: 0.030")


def test_the_page_of_few_labels_has_what_is_recorded():
    """The cells that the record is made with are there, above the comparison."""
    cells = pages.read_py(pages.NOTEBOOKS / "finetune_torch.py")
    code = "\n".join(cell.source for cell in cells).split("models = {")[0]
    for name in ("few", "adapt", "baseline", "vectors", "probe"):
        assert f"\ndef {name}(" in code
    assert "\nRATES =" in code and "\ntest =" in code


def test_pretraining_is_recorded_with_its_text(tmp_path, monkeypatch):
    file = tmp_path / "some.txt"
    file.write_text(text.load()["test"][:30_000], "utf-8")
    about = {"parts": [{"source": "Python 3", "kind": "*.py", "licence": "PSF-2.0"}]}
    file.with_suffix(".json").write_text(json.dumps(about), "utf-8")
    pairs = BytePairs.learn(text.load(file)["train"], 120)
    sizes = {"n_tokens": len(pairs), "m": 16, "n_blocks": 1, "n_heads": 2, "f": 8}
    sizes |= {"max_length": 16}
    model = model_torch.build(model_torch.ModernLM, **sizes)
    steps = Settings(n_train=400, batch_size=4, epochs=2, learning_rate=1e-3, warmup=1)
    rows = text.windows(pairs.encode(text.load(file)["train"]), 16)[:400]
    given = {"folder": tmp_path / "runs", "bar": False}
    history = model_torch.fit(model, model_torch.next_token, (rows,), steps, **given)
    notes = {"model": json.dumps(sizes), "block": "today", **pairs.metadata}
    save_weights(model, tmp_path / "some.safetensors", notes, half=True)
    options = [f"{file}", "--runs", f"{tmp_path / 'runs'}", "--weights"]
    options += [f"{tmp_path / 'some.safetensors'}", "--output", f"{tmp_path / 'out'}"]
    monkeypatch.setattr(sys, "argv", ["pretraining", *options])
    pretraining.main()
    (path,) = (tmp_path / "out").glob("*-pretraining-torch.json")
    record = json.loads(path.read_text("utf-8"))
    figures = record["figures"]
    assert record["text"] == about and figures["updates"] == 200
    assert figures["parameters"] == count_parameters(model)
    np.testing.assert_allclose(
        figures["curve"], history["loss"].reshape(2, 100).mean(axis=1), atol=1e-4
    )
    test = pairs.encode(text.load(file)["test"])
    data = (text.windows(test, 16),)
    found = model_torch.evaluate(model, model_torch.next_token, data)["loss"]
    np.testing.assert_allclose(figures["held-out loss"], found, rtol=1e-2)
    assert "| `*.py` | PSF-2.0 |" in path.with_suffix(".md").read_text("utf-8")
