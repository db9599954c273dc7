"""Pictures as sequences: patches, the vision Transformer, and augmentation."""

import math
from functools import partial

import numpy as np
import pytest
import scipy.ndimage
import torch
import torchvision

import reference_models
from helpers.data import photos
from helpers.data import pictures as picture_sets
from helpers.engine.settings import Pictures, Settings
from helpers.engine.shapes import as_numpy
from helpers.engine.weights import from_arrays, load_weights, save_weights, to_arrays
from helpers.jax import training as train_jax
from helpers.torch import training as train_torch
from sides import draw, fill, jax_side, on_both_sides, torch_side

B, L, H, D, P, F, C = 3, 2, 5, 7, 4, 13, 11
M, SIZE, N = H * D, 3 * P, 3
SIDES = jax_side, torch_side


def pictures(*shape, seed=0):
    """Pictures of floats in [0, 1]."""
    return np.random.default_rng(seed).random(shape, dtype=np.float32)


IMAGES = pictures(B, SIZE, SIZE, N)


def build_model(side, **options):
    """A small model and its parameters, each with a value of its own."""
    sizes = {"patch": P, "n_blocks": L, "n_heads": H, "f": F, **options}
    model = side.build("VisionTransformer", SIZE, N, M, C, **sizes)
    return model, fill(model)


def torchvision_names(params):
    """Names of torchvision's parameters in the order of its model; ours by name.

    Every entry is a renaming, but the kernel of the patches, which has its axes in
    another order.
    """
    names = {"class_token": params["token"]}
    kernel = params["embed.weight"].reshape(P, P, N, M)
    names["conv_proj.weight"] = kernel.transpose(3, 2, 0, 1)
    names["conv_proj.bias"] = params["embed.bias"]
    names["encoder.pos_embedding"] = params["positions.table"][None]
    own = {
        "ln_1": "norm1", "ln_2": "norm2", "mlp.0": "ffn.linear1",
        "mlp.3": "ffn.linear2", "self_attention.out_proj": "attention.out",
    }  # fmt: skip
    for n in range(L):
        block, layer = f"encoder.blocks.{n}", f"encoder.layers.encoder_layer_{n}"
        for theirs, ours in own.items():
            for leaf in ("weight", "bias"):
                names[f"{layer}.{theirs}.{leaf}"] = params[f"{block}.{ours}.{leaf}"].T
        for leaf in ("weight", "bias"):
            qkv = params[f"{block}.attention.qkv.{leaf}"].T
            names[f"{layer}.self_attention.in_proj_{leaf}"] = qkv
    for leaf in ("weight", "bias"):
        names[f"encoder.ln.{leaf}"] = params[f"encoder.norm.{leaf}"]
        names[f"heads.head.{leaf}"] = params[f"output.{leaf}"].T
    return {name: torch.tensor(np.ascontiguousarray(x)) for name, x in names.items()}


@on_both_sides
def test_the_model_equals_that_of_torchvision(side):
    model, params = build_model(side)
    own = torchvision.models.VisionTransformer(
        SIZE, P, L, H, M, F, num_classes=C,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-5),
    ).eval()  # fmt: skip
    own.load_state_dict(torchvision_names(params))  # strict: every name, every shape
    with torch.no_grad():
        expected = own(torch.tensor(IMAGES).permute(0, 3, 1, 2)).numpy()
    got = as_numpy(model(side.tensor(IMAGES)))
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)


@on_both_sides
@pytest.mark.parametrize(
    "options", [{}, {"pool": "mean", "positions": "sinusoidal"}], ids=["token", "mean"]
)
def test_the_model_is_that_of_the_formulas(side, options):
    model, params = build_model(side, **options)
    expected = reference_models.vision_transformer(IMAGES, params, P, L, H)
    np.testing.assert_allclose(
        as_numpy(model(side.tensor(IMAGES))), expected, atol=1e-5, rtol=0
    )


@on_both_sides
def test_a_hidden_patch_changes_no_output(side):
    model, _ = build_model(side)
    other = IMAGES.copy()
    other[:, :P, P : 2 * P] = 0.5  # the second patch, the third element
    mask = np.arange(10) != 2
    mask = side.mask(np.broadcast_to(mask, (10, 10)))
    hidden, seen = (
        [as_numpy(model(side.tensor(x), *given)) for x in (IMAGES, other)]
        for given in ((mask,), ())
    )
    np.testing.assert_array_equal(*hidden)
    assert np.abs(seen[0] - seen[1]).max() > 1e-3


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "none"])
def test_twins_agree_and_share_a_file(tmp_path, pool, positions):
    options = {"pool": pool, "positions": positions, "dropout": 0.0}
    (ours, params), (theirs, _) = (build_model(side, **options) for side in SIDES)
    save_weights(ours, tmp_path / "vit.safetensors")
    load_weights(theirs, tmp_path / "vit.safetensors")
    outs = [
        [as_numpy(x) for x in model(side.tensor(IMAGES), return_maps=True)]
        for side, model in zip(SIDES, (ours, theirs), strict=True)
    ]
    s = (SIZE // P) ** 2 + (pool == "token")
    assert outs[0][0].shape == (B, C) and outs[0][1].shape == (L, B, H, s, s)
    for got, expected in zip(*outs, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)
    assert set(to_arrays(theirs)) == set(params)


@on_both_sides
def test_patches_are_read_row_by_row_and_equal_a_convolution(side):
    y, x, i = np.indices((6, 8, 3))
    image = (100 * y + 10 * x + i).astype(np.float32)[None]
    cut = as_numpy(side.models.cut_patches(side.tensor(image), 2))
    assert cut.shape == (1, 12, 12)
    np.testing.assert_array_equal(cut[0, 5], image[0, 2:4, 2:4].ravel())
    kernel, bias = draw(M, N, P, P).astype(np.float32), draw(M, seed=1)
    expected = torch.nn.functional.conv2d(
        torch.tensor(IMAGES).permute(0, 3, 1, 2), torch.tensor(kernel),
        torch.tensor(bias.astype(np.float32)), stride=P,
    ).flatten(2).transpose(1, 2)  # fmt: skip
    cut = as_numpy(side.models.cut_patches(side.tensor(IMAGES), P))
    flat = kernel.transpose(2, 3, 1, 0).reshape(-1, M)
    np.testing.assert_allclose(cut @ flat + bias, expected, atol=1e-5)


@on_both_sides
def test_bytes_are_pixels_from_0_to_1(side):
    model, _ = build_model(side)
    whole = np.random.default_rng(1).integers(256, size=IMAGES.shape, dtype=np.uint8)
    as_bytes = as_numpy(model(side.tensor(whole, "uint8")))
    as_floats = as_numpy(model(side.tensor(whole / 255)))
    np.testing.assert_allclose(as_bytes, as_floats, atol=1e-6)


@on_both_sides
def test_what_cannot_be_a_model_raises(side):
    for options, said in (
        ({"patch": 5}, "image_size = 12 is not divisible by patch = 5"),
        ({"patch": 0}, "patch = 0"),
        ({"patch": 24}, "patch = 24"),
        ({"pool": "max"}, "pool 'max' is not in"),
        ({"positions": "relative"}, "positions 'relative' is not in"),
        ({"dropout": 1.0}, "dropout 1.0 is not in"),
        ({"n_blocks": 0}, "at least one block"),
    ):
        with pytest.raises(ValueError, match=said):
            build_model(side, **options)


@on_both_sides
def test_what_is_no_picture_of_this_model_raises(side):
    model, _ = build_model(side)
    for shape in ((SIZE, SIZE, N), (B, SIZE, SIZE), (B, SIZE, SIZE, 1), (B, 8, 8, N)):
        with pytest.raises(ValueError, match="expected pictures of shape b 12 12 3"):
            model(side.tensor(pictures(*shape)))
    with pytest.raises(TypeError, match=r"floats or uint8, got .*int32"):
        model(side.tensor(IMAGES, "int32"))
    with pytest.raises(ValueError, match="multiples of patch = 5"):
        side.models.cut_patches(side.tensor(IMAGES), 5)


@on_both_sides
def test_a_new_class_token_is_as_small_as_new_positions(side):
    sizes = {"patch": SIZE, "n_blocks": 1, "n_heads": 1, "f": F}
    arrays = to_arrays(side.build("VisionTransformer", SIZE, N, 601, C, **sizes))
    for name in ("token", "positions.table"):
        assert arrays[name].std() == pytest.approx(0.02, rel=0.15), name


@on_both_sides
def test_dropout_comes_after_the_positions(side):
    """Of nothing but positions, with all blocks silenced, two calls still differ."""
    model, params = build_model(side, dropout=0.5)
    silent = "embed", "token", "attention.out", "ffn.linear2"
    quiet = {n: 0 * x for n, x in params.items() if any(part in n for part in silent)}
    from_arrays(model, params | quiet)
    model.train()
    first, second = (as_numpy(model(side.tensor(IMAGES))) for _ in range(2))
    assert np.abs(first - second).max() > 0.1, "no dropout after the positions"


# Augmentation


@on_both_sides
@pytest.mark.parametrize("shape", [(9, 9), (6, 11)])
def test_pictures_are_moved_as_scipy_moves_them(side, shape):
    """By any angle and shift; and by whole pixels exactly."""
    images = pictures(4, *shape, 2)
    angles = np.array([0.0, 0.3, -2.0, 0.1], np.float32)
    shifts = np.array([[0, 0], [1.5, -2], [0.25, 0], [3, 1]], np.float32)
    given = map(side.tensor, (images, angles, shifts))
    moved = as_numpy(side.models.move_pictures(*given))
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
    np.testing.assert_array_equal(moved[0], images[0])


@on_both_sides
def test_augmentation_uses_the_whole_range_and_keeps_labels(side):
    n = 400
    dot = np.zeros((n, 9, 9, 1), np.float32)
    dot[:, 4, 4] = 1
    uniforms = np.random.default_rng(2).random((n, 8), dtype=np.float32)
    given = side.tensor(uniforms), side.tensor(dot), side.tensor(np.arange(n), "int32")
    moved, labels = side.models.augment(*given, pixels=2)
    moved = as_numpy(moved)[..., 0]
    assert as_numpy(labels).tolist() == [*range(n)]
    np.testing.assert_allclose(moved.sum((1, 2)), 1, atol=1e-5)
    for axis in (1, 2):
        at = (moved * np.indices((9, 9))[axis - 1]).sum((1, 2)) - 4
        assert -2 <= at.min() < -1.9 and 1.9 < at.max() <= 2
        assert abs(at.mean()) < 0.15 and at.std() == pytest.approx(2 / 3**0.5, abs=0.1)
    left = np.zeros((n, 9, 9, 1), np.float32)
    left[:, 4, 0] = 1
    given = given[0], side.tensor(left), given[2]
    mirrored = as_numpy(side.models.augment(*given, flip=True)[0])[:, 4, 8, 0]
    assert set(mirrored) == {0, 1} and abs(mirrored.mean() - 0.5) < 0.1
    turned = as_numpy(side.models.augment(*given, degrees=30)[0])[..., 0]
    rows = (turned * np.arange(9)[:, None]).sum((1, 2)) / turned.sum((1, 2)) - 4
    assert np.abs(rows).max() == pytest.approx(4 * math.sin(math.pi / 6), abs=0.1)
    whole = (255 * dot).astype(np.uint8)
    given = given[0], side.tensor(whole, "uint8"), given[2]
    np.testing.assert_allclose(
        as_numpy(side.models.augment(*given, pixels=2)[0])[..., 0], moved, atol=1e-6
    )


MOVES = {  # what each uses of the eight numbers of a picture
    "angle": ({"degrees": 30}, {0}),
    "shifts": ({"pixels": 2}, {1, 2}),
    "mirror": ({"flip": True}, {3}),
    "all": ({"degrees": 30, "pixels": 2, "flip": True}, {0, 1, 2, 3}),
}


@on_both_sides
@pytest.mark.parametrize("name", MOVES)
def test_angle_shifts_and_mirror_use_random_numbers_of_their_own(side, name):
    """Another number changes the pictures if the move uses it, and else no bit."""
    options, used = MOVES[name]
    images, uniforms = pictures(5, 9, 9, 1), pictures(5, 8, seed=7)

    def moved(uniforms):
        given = map(side.tensor, (uniforms, images, np.zeros(5)))
        return as_numpy(side.models.augment(*given, **options)[0])

    expected = moved(uniforms)
    for place in range(8):
        others = uniforms.copy()
        others[:, place] = (others[:, place] + 0.5) % 1
        changed = (moved(others) != expected).any(axis=(1, 2, 3))
        assert (changed == (place in used)).all(), f"number {place} of {name}"


def test_twins_train_on_the_same_augmented_pictures():
    """The same losses; others without augmentation, or with another one."""
    settings = Settings(
        n_train=48, batch_size=8, epochs=2, learning_rate=1e-3, warmup=2
    )
    images = (255 * pictures(48, SIZE, SIZE, N, seed=4)).astype(np.uint8)
    labels = np.random.default_rng(5).integers(C, size=48).astype(np.int32)
    data, losses = (images, labels), {}
    changes = {"degrees": 20, "pixels": 2, "flip": True}
    start = build_model(torch_side)[1]
    for name, side, train, options in (
        ("jax", jax_side, train_jax, changes),
        ("torch", torch_side, train_torch, changes),
        ("turned less", torch_side, train_torch, changes | {"degrees": 10}),
        ("none", torch_side, train_torch, None),
    ):
        model, _ = build_model(side)
        from_arrays(model, start)
        how = None if options is None else partial(side.models.augment, **options)
        run = train.fit(
            model, train.cross_entropy, data, settings, augment=how,
            validation=data, bar=False,
        )  # fmt: skip
        losses[name] = run["loss"]
    np.testing.assert_allclose(losses["jax"], losses["torch"], atol=1e-4)
    for other in ("turned less", "none"):
        assert np.abs(losses[other] - losses["torch"]).max() > 1e-3


@on_both_sides
def test_labels_that_fit_no_picture_raise_before_training(side):
    train = {"jax": train_jax, "torch": train_torch}[side.name]
    settings = Settings(n_train=8, batch_size=4, epochs=2, learning_rate=1e-3, warmup=1)
    model, _ = build_model(side)
    images = pictures(8, SIZE, SIZE, N)
    for labels, said in (
        (np.zeros((8, SIZE), np.int32), r"whole numbers of shape \(8,\)"),
        (np.full(8, C, np.int32), "labels from 0 to 10"),
    ):
        with pytest.raises(ValueError, match=said):
            train.fit(model, train.cross_entropy, (images, labels), settings, bar=False)


# Pictures and their settings


def test_pictures_are_moved_by_whole_pixels():
    images = pictures(2, 5, 7, 1)
    down = picture_sets.shifted(images, 2, 0)
    np.testing.assert_array_equal(down[:, 2:], images[:, :-2])
    assert (down[:, :2] == 0).all()
    left = picture_sets.shifted(images, 0, -3)
    np.testing.assert_array_equal(left[:, :, :-3], images[:, :, 3:])
    assert (left[:, :, -3:] == 0).all()
    np.testing.assert_array_equal(picture_sets.shifted(images, 0, 0), images)


@pytest.fixture
def unequal(tmp_path, monkeypatch):
    """Prepared photos of three classes, 1000, 20 and 10, each with its number on it."""
    monkeypatch.setenv("DATA_FOLDER", str(tmp_path))
    arrays = {"classes": np.array(["a", "b", "c"])}
    for part, counts in {"train": [1000, 20, 10], "test": [5, 5, 5]}.items():
        labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], counts))
        numbers = np.arange(len(labels), dtype=">u2").view(np.uint8)
        arrays[f"{part}_images"] = numbers.reshape(-1, 1, 2, 1)
        arrays[f"{part}_labels"] = labels.astype(np.int32)
    np.savez(photos.images_file("cifar10"), **arrays)
    return arrays


def test_a_tenth_of_each_class_of_photos_is_for_validation(unequal):
    """One at least; none is lost or in two parts, and each keeps its label."""
    found = [picture_sets.load("cifar10", seed) for seed in (3, 3, *range(4, 14))]
    chosen = [parts["validation"] for parts, _ in found]
    for _, labels in chosen:
        assert np.bincount(labels, minlength=3).tolist() == [100, 2, 1]
    np.testing.assert_array_equal(chosen[0][0], chosen[1][0])
    assert (chosen[0][0] != chosen[2][0]).any(), "another seed, the same photos"
    parts, names = found[0]
    assert names == ["a", "b", "c"]
    images, labels = (
        np.concatenate([parts[name][n] for name in ("train", "validation")])
        for n in range(2)
    )
    numbers = images.reshape(-1, 2).copy().view(">u2").ravel()
    np.testing.assert_array_equal(np.sort(numbers), np.arange(1030))
    np.testing.assert_array_equal(labels, unequal["train_labels"][numbers])
    np.testing.assert_array_equal(parts["test"][0], unequal["test_images"])
    np.testing.assert_array_equal(parts["test"][1], unequal["test_labels"])


def test_settings_follow_from_the_pictures():
    """Sizes and classes of the data, about as many updates as asked for."""
    images = np.zeros((4000, 32, 32, 3), np.uint8)
    parts = {"train": (images, np.arange(4000, dtype=np.int32) % 7)}
    found = Pictures.for_data(parts)
    assert (found.image_size, found.n_channels, found.patch) == (32, 3, 4)
    assert (found.n_train, found.n_classes, found.batch_size) == (4000, 7, 64)
    assert found.updates == 682 and found.warmup == 50
    assert Pictures.for_data(parts, 30_000).epochs == 100
    chosen = Pictures.for_data(parts, patch=8, m=48, epochs=2)
    assert (chosen.patch, chosen.m, chosen.epochs, chosen.warmup) == (8, 48, 2, 12)
    few = {"train": (images[:9, :7, :7, :1], parts["train"][1][:9])}
    found = Pictures.for_data(few)
    assert (found.batch_size, found.patch, found.image_size) == (2, 1, 7)
