"""The model that sees: the same numbers in JavaScript, and a page to draw on."""

import math

import numpy as np
import pytest
import safetensors.numpy

import pages
import playground
from comparison import JAVASCRIPT
from helpers import pictures, reference
from helpers.settings import Pictures
from helpers.shapes import as_numpy
from helpers.weights import from_arrays
from sides import fill, jax_side, torch_side
from test_playground_decoders import halved, packed, unpacked

SETTINGS = Pictures()
SIDES = {"jax": jax_side, "torch": torch_side}
B, L, H, D, P, F, C = 200, 2, 3, 7, 5, 13, 11
SIZE, N_CHANNELS, M = 3 * P, 2, H * D
by_side = pytest.mark.parametrize("side", pages.SIDES)

LIBRARY = """
const unpack = data => readSafetensors(readBase64(data));
const pack = list => {  // as bytes: a list of numbers takes seconds
    const letters = new Uint8Array(Float64Array.from(list.flat(Infinity)).buffer);
    return btoa(Array.from(letters, byte => String.fromCharCode(byte)).join(''));
};
const fold = (numbers, [n, ...rest]) => n === undefined ? numbers[0] : Array.from(
    {length: n}, (_, i) => fold(numbers.slice(
        i * numbers.length / n, (i + 1) * numbers.length / n), rest));
"""
SEE = """([data, sizes, images]) => {
    const model = new VisionTransformer(unpack(data), sizes);
    const {images: numbers} = unpack(images), shape = sizes.shape;
    const found = fold(numbers, shape).map(image => model.call(image));
    return [0, 1].map(which => pack(found.map(pair => pair[which])));
}"""


@pytest.fixture(scope="module")
def javascript(browser):
    """A page with the models in JavaScript and nothing else."""
    page = browser.new_page()
    for name in playground.SCRIPTS:
        page.add_script_tag(path=JAVASCRIPT.with_name(name))
    page.add_script_tag(content=LIBRARY)
    yield page
    page.close()


def see(javascript, params, sizes, images):
    """Logits ``b c`` and maps ``b l h s s`` in JavaScript."""
    given = packed({"images": images.astype(np.float32)})
    sizes = sizes | {"shape": images.shape}
    found = javascript.evaluate(SEE, [packed(params), sizes, given])
    s = (images.shape[1] // sizes["patch"]) ** 2 + ("token" in params)
    b, heads = len(images), (sizes["nBlocks"], sizes["nHeads"])
    return unpacked(found[0], b, -1), unpacked(found[1], b, *heads, s, s)


def in_both(params, images, sizes):
    """Logits and maps of both frameworks with these weights."""
    for side in SIDES.values():
        model = side.build("VisionTransformer", **sizes)
        from_arrays(model, params)
        logits, maps = model(side.tensor(images), return_maps=True)
        yield as_numpy(logits), as_numpy(maps).swapaxes(0, 1)


def agrees(found, params, images, sizes):
    """Within the bounds that the page states, with both frameworks."""
    for logits, maps in in_both(params, images, sizes):
        np.testing.assert_allclose(found[0], logits, atol=1e-4, rtol=0)
        np.testing.assert_allclose(found[1], maps, atol=1e-5, rtol=0)


def small(**options):
    """Sizes, all different primes, and halved weights, biases and norms too."""
    sizes = {
        "image_size": SIZE, "n_channels": N_CHANNELS, "m": M, "n_outputs": C, "patch": P,
        "n_blocks": L, "n_heads": H, "f": F, **options,
    }  # fmt: skip
    return sizes, halved(fill(torch_side.build("VisionTransformer", **sizes), seed=3))


IMAGES = np.random.default_rng(4).random((B, SIZE, SIZE, N_CHANNELS), np.float32)
SMALL = {"nBlocks": L, "nHeads": H, "patch": P}


@pytest.mark.parametrize("norm_first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@pytest.mark.parametrize("pool", ["token", "mean"])
def test_the_vision_transformer_agrees_with_both_frameworks(
    javascript, norm_first, positions, pool
):
    sizes, params = small(norm_first=norm_first, positions=positions, pool=pool)
    found = see(javascript, params, SMALL | {"normFirst": norm_first}, IMAGES)
    agrees(found, params, IMAGES, sizes)


@pytest.mark.parametrize("pool", ["token", "mean"])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_the_vision_transformer_agrees_with_the_reference(javascript, pool, positions):
    """In double precision, where nothing but rounding may differ."""
    _, params = small(pool=pool, positions=positions)
    images = IMAGES[:9]
    logits, maps = see(javascript, params, SMALL | {"normFirst": True}, images)
    expected, its_maps = reference.vision_transformer(images, params, L, H, P)
    np.testing.assert_allclose(logits, expected, atol=1e-9)
    np.testing.assert_allclose(maps, its_maps.swapaxes(0, 1), atol=1e-12)


def test_gelu_is_exact_to_rounding(javascript):
    """Not the approximation by tanh, which is off by up to 5e-4."""
    x = np.concatenate([np.linspace(-12, 12, 4801), [0, 1e-300, -1e-9, 40, -40]])
    found = unpacked(javascript.evaluate("x => pack(gelu([x]))", x.tolist()), -1)
    np.testing.assert_allclose(found, reference.gelu(x), rtol=1e-12, atol=1e-14)
    far = javascript.evaluate("[NaN, Infinity, -Infinity].map(erf)")
    assert math.isnan(far[0]) and far[1:] == [1, -1]


@pytest.mark.parametrize("patch", [1, 3, 5, 15])
def test_patches_are_cut_as_in_both_frameworks(javascript, patch):
    code = "([images, patch]) => pack(images.map(image => cutPatches(image, patch)))"
    images = IMAGES[:3]
    found = unpacked(javascript.evaluate(code, [images.tolist(), patch]), -1)
    for side in SIDES.values():
        expected = as_numpy(side.models.cut_patches(side.tensor(images), patch))
        np.testing.assert_array_equal(found, expected.ravel())
