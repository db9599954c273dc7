"""Pictures as sequences: patches, the vision Transformer, augmentation, photos."""

import io
import math
from base64 import b64decode

import numpy as np
import pytest
import scipy.ndimage
import torch
import torchvision
from PIL import Image

from helpers.data.photos import square
from helpers.settings import Settings
from helpers.show import recorded
from helpers.weights import as_numpy, count_parameters, from_arrays, to_arrays
from sides import NOTEBOOKS, definitions, draw, fill, on_both_sides, torch_side

B, L, H, D, P, F, C = 3, 2, 5, 7, 4, 13, 11
M, SIZE, N = H * D, 3 * P, 3


def page(side):
    return definitions(f"vision_{side.name}")


def pictures(*shape, seed=0):
    """Pictures of floats in [0, 1]."""
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


IMAGES = pictures(B, SIZE, SIZE, N)


def build_model(side, **options):
    """A small model, and its parameters, each with a value of its own."""
    sizes = {"patch": P, "n_blocks": L, "n_heads": H, "f": F, **options}
    model = side.build(page(side).VisionTransformer, SIZE, N, M, C, **sizes)
    return model, fill(model)


@on_both_sides
def test_the_model_equals_that_of_torchvision(side):
    """Outputs, and the gradient of the pictures, from the weights as renamed."""
    theirs = torchvision.models.VisionTransformer(
        SIZE, P, L, H, M, F, num_classes=C, norm_layer=torch.nn.LayerNorm
    ).eval()
    torch.manual_seed(3)
    for param in theirs.parameters():
        torch.nn.init.normal_(param, std=0.3)
    published = {name: as_numpy(x) for name, x in theirs.state_dict().items()}
    model, _ = build_model(side)
    from_arrays(model, page(side).renamed(published, page(side).TORCHVISION))
    x = torch.tensor(IMAGES, requires_grad=True)
    expected = theirs(x.permute(0, 3, 1, 2))
    (expected**2).sum().backward()
    got = as_numpy(model(side.tensor(IMAGES)))
    np.testing.assert_allclose(got, as_numpy(expected), atol=1e-4, rtol=0)
    grads = side.grads(model, lambda out: (out**2).sum(), side.tensor(IMAGES))
    scale = x.grad.abs().max().item()
    np.testing.assert_allclose(grads["input"], as_numpy(x.grad), atol=1e-4 * scale)


@on_both_sides
def test_patches_are_read_row_by_row_and_equal_a_convolution(side):
    y, x, i = np.indices((6, 8, 3))
    image = (100 * y + 10 * x + i).astype(np.float32)[None]
    cut = as_numpy(page(side).cut_patches(side.tensor(image), 2))
    assert cut.shape == (1, 12, 12)
    np.testing.assert_array_equal(cut[0, 5], image[0, 2:4, 2:4].ravel())
    kernel, bias = draw(M, N, P, P), draw(M, seed=1)
    given = torch.tensor(IMAGES).permute(0, 3, 1, 2), torch.tensor(kernel)
    expected = torch.nn.functional.conv2d(*given, torch.tensor(bias), stride=P)
    cut = as_numpy(page(side).cut_patches(side.tensor(IMAGES), P))
    flat = kernel.transpose(2, 3, 1, 0).reshape(-1, M)
    expected = expected.flatten(2).transpose(1, 2)
    np.testing.assert_allclose(cut @ flat + bias, expected, atol=1e-5)


@on_both_sides
def test_pictures_of_another_shape_raise(side):
    model, _ = build_model(side)
    for shape in ((B, SIZE, SIZE, 1), (B, 8, 8, N), (B, 8, SIZE, N)):
        with pytest.raises(ValueError, match=r"expected b \(12, 12, 3\)"):
            model(side.tensor(pictures(*shape)))
    with pytest.raises(ValueError, match="multiples of patch = 5"):
        page(side).cut_patches(side.tensor(IMAGES), 5)


@on_both_sides
def test_a_new_class_token_is_as_small_as_new_positions(side):
    sizes = {"patch": SIZE, "n_blocks": 1, "n_heads": 1, "f": F}
    model = side.build(page(side).VisionTransformer, SIZE, N, 601, C, **sizes)
    for name in ("token", "positions.table"):
        assert to_arrays(model)[name].std() == pytest.approx(0.02, rel=0.15), name


@on_both_sides
def test_dropout_comes_after_the_positions_and_only_in_training(side):
    """Of nothing but positions, with all blocks silenced, two calls still differ."""
    model, params = build_model(side, dropout=0.5)
    silent = "embed", "token", "attention.out", "ffn.linear2"
    quiet = {n: 0 * x for n, x in params.items() if any(part in n for part in silent)}
    from_arrays(model, params | quiet)
    assert [*side.rates(model).values()] == [0.5] * (1 + 2 * L)
    for mode, differ in (("train", True), ("eval", False)):
        getattr(model, mode)()
        first, second = (as_numpy(model(side.tensor(IMAGES))) for _ in range(2))
        assert (np.abs(first - second).max() > 0.1) == differ


@on_both_sides
def test_pictures_are_moved_as_scipy_moves_them(side):
    """By any angle and shift; and by whole pixels exactly."""
    images, shape = pictures(4, 7, 7, 2), (7, 7)
    angles = np.array([0.0, 0.3, -2.0, 0.1], np.float32)
    shifts = np.array([[0, 0], [1.5, -2], [0.25, 0], [3, 1]], np.float32)
    given = map(side.tensor, (images, angles, shifts))
    moved = as_numpy(page(side).move_pictures(*given))
    middle = (np.array(shape) - 1) / 2
    for image, angle, shift, got in zip(images, angles, shifts, moved, strict=True):
        cos, sin = math.cos(angle), math.sin(angle)
        back = np.array([[cos, sin], [-sin, cos]])
        offset = middle - back @ (middle + shift)
        for i in range(2):
            expected = scipy.ndimage.affine_transform(
                image[..., i], back, offset, order=1, mode="grid-constant"
            )
            np.testing.assert_allclose(got[..., i], expected, atol=1e-4)
    rounding = 1e-6 if side is torch_side else 0  # its grid counts in halves of a side
    np.testing.assert_allclose(moved[0], images[0], rtol=0, atol=rounding)


@on_both_sides
def test_augmentation_uses_the_whole_range_and_keeps_labels(side):
    n, labels = 400, np.arange(400)
    uniforms = np.random.default_rng(2).random((n, 8), dtype=np.float32)
    dot, left = np.zeros((2, n, 9, 9, 1), np.float32)
    dot[:, 4, 4], left[:, 4, 0] = 1, 1

    def augmented(change, images, **options):
        given = map(side.tensor, (uniforms, images, labels))
        images, kept = change(*given, **options)
        assert as_numpy(kept).tolist() == labels.tolist()
        return as_numpy(images)[..., 0]

    moved = augmented(page(side).augment, dot, degrees=0, pixels=2)
    np.testing.assert_allclose(moved.sum((1, 2)), 1, atol=1e-5)
    for axis in (0, 1):
        at = (moved * np.indices((9, 9))[axis]).sum((1, 2)) - 4
        assert -2 <= at.min() < -1.9 and 1.9 < at.max() <= 2
        assert abs(at.mean()) < 0.15 and at.std() == pytest.approx(2 / 3**0.5, abs=0.1)
    mirrored = augmented(page(side).mirror, left)[:, 4, 8]
    assert set(mirrored) == {0, 1} and abs(mirrored.mean() - 0.5) < 0.1
    turned = augmented(page(side).augment, left, degrees=30, pixels=0)
    rows = (turned * np.arange(9)[:, None]).sum((1, 2)) / turned.sum((1, 2)) - 4
    np.testing.assert_allclose([rows.min(), rows.max()], [-2, 2], atol=0.1)  # 30°


@on_both_sides
@pytest.mark.parametrize(
    ("name", "options", "used"),
    [
        ("augment", {"degrees": 30, "pixels": 0}, {0}),
        ("augment", {"degrees": 0, "pixels": 2}, {1, 2}),
        ("mirror", {}, {0}),
    ],
)
def test_each_move_uses_random_numbers_of_its_own(side, name, options, used):
    """Another number changes the pictures if the move uses it, and else no bit."""
    images, uniforms = pictures(5, 9, 9, 1), pictures(5, 8, seed=7)

    def moved(uniforms):
        given = map(side.tensor, (uniforms, images, np.zeros(5)))
        return as_numpy(getattr(page(side), name)(*given, **options)[0])

    for place in range(8):
        others = uniforms.copy()
        others[:, place] = (others[:, place] + 0.5) % 1
        changed = (moved(others) != moved(uniforms)).any(axis=(1, 2, 3))
        assert (changed == (place in used)).all(), f"number {place}"


@on_both_sides
def test_a_frozen_trunk_stays(side):
    model, first = build_model(side)
    settings = Settings(n_train=B, batch_size=B, epochs=2, learning_rate=1e-2)
    data, trained = (IMAGES, np.arange(B, dtype=np.int32)), page(side).freeze(model)
    options = {} if side is torch_side else {"wrt": trained}
    side.models.fit(model, side.models.cross_entropy, data, settings, **options)
    found = to_arrays(model)
    changed = {name for name in found if not np.array_equal(found[name], first[name])}
    assert changed == {"output.weight", "output.bias"}


@on_both_sides
def test_a_net_is_fine_tuned_with_a_loader_whose_channels_come_first(side):
    own, labels = page(side), torch.arange(8) % 2
    photos = labels[:, None, None, None] * torch.ones(8, N, SIZE, SIZE)
    batches = [*zip(photos.split(4), labels.split(4), strict=True)]
    theirs = torchvision.models.VisionTransformer(SIZE, P, 1, H, M, F, num_classes=C)
    net = theirs if side is torch_side else build_model(side, n_blocks=1)[0]
    losses = own.fine_tune(net, batches, epochs=20, rate=1e-2)
    logits, found = own.outputs(net, batches)
    assert losses[-1] < losses[0] / 2 and (logits.argmax(axis=1) == found).all()
    assert own.features(net, batches)[0].shape == (8, M)


@on_both_sides
def test_the_convolutional_net_ignores_even_shifts_on_an_empty_sheet(side):
    """It has the size of the page's ViT; odd shifts make other pairs in the pooling."""
    net = side.build(page(side).ConvNet, 1, 10)
    assert abs(count_parameters(net) / 39_610 - 1) < 0.05
    sheet = np.zeros((2, 32, 32, 1), np.float32)
    sheet[:, 12:20, 12:20] = pictures(2, 8, 8, 1)
    rolled = [np.roll(sheet, by, axis=(1, 2)) for by in ((0, 0), (2, -4), (1, 0))]
    outputs = [as_numpy(net(side.tensor(x))) for x in rolled]
    np.testing.assert_allclose(outputs[1], outputs[0], atol=1e-5)
    assert np.abs(outputs[2] - outputs[0]).max() > 1e-4


def test_shifted_pictures_lose_what_crosses_the_border():
    images, moved = pictures(2, 8, 8, 1), page(torch_side).moved
    up, down, left, right = np.split(moved(images, np.arange(2))[0], 4)
    np.testing.assert_array_equal(up[:, :-1], images[:, 1:])
    np.testing.assert_array_equal(down[:, 1:], images[:, :-1])
    np.testing.assert_array_equal(left[:, :, :-1], images[:, :, 1:])
    np.testing.assert_array_equal(right[:, :, 1:], images[:, :, :-1])
    assert not any(x.any() for x in (up[:, -1], down[:, 0], left[:, :, -1]))
    assert moved(images, np.arange(2))[1].tolist() == 4 * [0, 1]


def save_photos(folder, names, n):
    """Noisy photos of one colour for each class."""
    rng = np.random.default_rng(n)
    for place, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for number in range(n):
            x = rng.integers(100, size=(36, 48, 3), dtype=np.uint8)
            x[..., 2 - 2 * place] += 150  # colours are red, green, blue
            Image.fromarray(x).save(folder / name / f"{number}.png")


@on_both_sides
def test_a_folder_of_photos_is_split_and_learned(side, tmp_path, monkeypatch):
    own, names = page(side), ["blue", "red"]
    monkeypatch.chdir(NOTEBOOKS)
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path / "data"))
    save_photos(tmp_path / "photos", names, 40)
    *parts, classes = own.load_photos(str(tmp_path / "photos"))
    assert classes == names and [len(y) for _, y in parts] == [57, 7, 16]
    assert parts[2][0].shape == (16, 32, 32, 3) and parts[2][0].max() <= 1
    assert len({image.tobytes() for x, _ in parts for image in x}) == 80
    monkeypatch.setattr(own, "sizes", {"n_heads": 2}, raising=False)
    small = {"image_size": 32, "n_channels": 3, "patch": 8, "n_blocks": 1}
    monkeypatch.setattr(own, "larger", small | {"m": 16, "f": 32}, raising=False)
    model = own.learn_photos(*parts[:2], classes, updates=80)
    assert own.accuracy(model, *parts[2]) > 0.9
    p = own.probabilities(model, parts[2][0])
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-5)
    assert (p.argmax(axis=1) == parts[2][1]).mean() > 0.9


def test_the_middle_square_is_taken_and_the_camera_heeded(tmp_path):
    wide = Image.new("RGB", (96, 32), "red")
    wide.paste("lime", (32, 0, 64, 32))
    assert (square(wide) == [0, 255, 0]).all()
    upright = Image.new("L", (32, 32), "black")
    upright.paste("white", (0, 0, 32, 16))  # the upper half
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned
    upright.rotate(90, expand=True).save(tmp_path / "turned.png", exif=exif)
    found = square(Image.open(tmp_path / "turned.png"))
    assert found[:14].min() > 250 and found[18:].max() < 5


GREY = np.full((40, 50), 0x4100, np.uint16)  # a dark picture; its own range is 0
CLEAR = np.full((40, 50, 4), (9, 9, 9, 0), np.uint8)
RED = Image.new("RGB", (50, 40), "red")


PHOTOS = {  # what they become, and the modes and depths that do
    65: {"16.png": GREY, "16.tif": GREY, "16.pgm": GREY, "big.tif": GREY.astype(">u2"),
         "32.tif": GREY.astype(np.int32) << 15, "float.tif": np.float32(GREY / 65_535),
         "8.jpg": Image.new("L", (50, 40), 65)},
    255: {"1.png": Image.new("1", (50, 40), 1), "clear.png": CLEAR, "clear.webp": CLEAR,
          "grey.png": Image.new("LA", (50, 40), (9, 0)),
          "lab.tif": Image.new("LAB", (50, 40), (255, 128, 128))},
    (254, 0, 0): {"cmyk.jpg": RED.convert("CMYK"), "cmyk.tif": RED.convert("CMYK"),
                  "ycc.tif": RED.convert("YCbCr"), "palette.gif": RED.convert("P"),
                  "one.bmp": RED.crop((0, 0, 1, 1)), "long.png": RED.resize((3, 999))},
}  # fmt: skip


@pytest.mark.parametrize(
    ("colour", "name"), [(x, name) for x, photos in PHOTOS.items() for name in photos]
)
def test_photos_of_any_mode_and_depth_are_read_by_their_type(colour, name, tmp_path):
    photo = PHOTOS[colour][name]
    photo = Image.fromarray(photo) if isinstance(photo, np.ndarray) else photo
    photo.save(tmp_path / name)
    with Image.open(tmp_path / name) as opened:
        found = square(opened)
    assert found.shape == (32, 32, 3) and found.dtype == np.uint8
    assert np.abs(found - np.array(colour, int)).max() <= 2


def test_a_palette_may_be_transparent_and_a_gif_may_move(tmp_path):
    frames = [RED, Image.new("RGB", (50, 40), "lime")]
    RED.save(tmp_path / "moves.gif", save_all=True, append_images=frames[1:])
    RED.convert("P").save(tmp_path / "clear.png", transparency=bytes(256))
    for name, colour in {"moves.gif": [255, 0, 0], "clear.png": [255] * 3}.items():
        with Image.open(tmp_path / name) as opened:
            assert (square(opened) == colour).all(), name


def test_the_record_of_photos_has_what_the_page_reads():
    run = recorded("cifar10")[-1]
    assert len(run["loss"]) == run["updates"] // run["every"] and run["augmentation"]
    steps, shares = np.array(run["validation_accuracy"]).T
    assert steps[-1] <= run["updates"] and ((shares > 0) & (shares < 1)).all()
    assert len(run["classes"]) == len(run["examples"]) == run["sizes"]["n_outputs"]
    for found in run["examples"]:
        photo = Image.open(io.BytesIO(b64decode(found["photo"])))
        assert photo.size == (32, 32) and len(found["map"]) == 8 * 8
        assert sum(found["probabilities"]) == pytest.approx(1, abs=1e-3)
    model = torch_side.build(page(torch_side).VisionTransformer, **run["sizes"])
    assert count_parameters(model) == run["n_parameters"]
