"""The chapter *Pictures as sequences* builds these: patches, the vision Transformer."""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from helpers.jax.attention import dense
from helpers.jax.encoder import Encoder, pick
from helpers.jax.positions import POSITIONS


def cut_patches(images, patch):
    """Cut pictures into patches, row by row: ``b y x i -> b n (p p i)``.

    Height and width are multiples of ``patch``, the side ``p`` in pixels.

    Source: Dosovitskiy et al. 2021, sec. 3.1.
    """
    if images.ndim != 4 or images.shape[1] % patch or images.shape[2] % patch:
        raise ValueError(
            f"expected pictures b y x i whose sides are multiples of patch = {patch}, "
            f"got shape {tuple(images.shape)}"
        )
    b, y, x, i = images.shape
    cut = images.reshape(b, y // patch, patch, x // patch, patch, i)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, patch * patch * i)


POOLS = {"token": 1, "mean": 0}  # elements in front of the patches


class VisionTransformer(nnx.Module):
    """One output vector for each picture: ``b y x i -> b c``.

    Pictures and patches are square, ``image_size`` and ``patch`` pixels a side. The
    output comes from a learned token before the patches (``pool="token"``), or from their
    mean ("mean"). ``positions`` is of ``POSITIONS``; ``n_blocks``, ``n_heads``, ``f`` and
    ``options`` are of ``Encoder``, with dropout also after the positions, "gelu", pre-norm.

    Source: Dosovitskiy et al. 2021, sec. 3.1.
    """

    def __init__(
        self, image_size, n_channels, m, n_outputs, *, patch, n_blocks, n_heads, f,
        pool="token", positions="learned", rngs, **options,
    ):  # fmt: skip
        kind, options["attention"] = pick(POSITIONS, positions, "positions")
        length = (front := pick(POOLS, pool, "pool")) + count_patches(image_size, patch)
        self.shape, self.patch = (image_size, image_size, n_channels), patch
        self.embed = dense(patch * patch * n_channels, m, rngs=rngs)
        token = 0.02 * jax.random.normal(rngs.params(), (1, front, m))
        self.token = nnx.Param(token) if front else None
        self.positions = kind(m, length, rngs=rngs) if kind else None
        self.dropout = nnx.Dropout(options.get("dropout", 0.0), rngs=rngs)
        options = {"activation": "gelu", "norm_first": True, **options}
        self.encoder = Encoder(n_blocks, m, n_heads, f, rngs=rngs, **options)
        self.output = dense(m, n_outputs, rngs=rngs)

    def __call__(self, images, mask=None, *, return_maps=False):
        """Outputs ``b c``; with ``return_maps`` the pair of them and ``l b h s s``.

        Pictures ``b y x i`` are floats, or ``uint8``, which is divided by 255. With a
        token ``s`` counts it first, then the patches row by row.
        """
        images = check_images(images, self.shape)
        x = self.embed(cut_patches(images, self.patch))  # b n m
        if self.token is not None:
            token = jnp.broadcast_to(self.token[...], (len(x), 1, x.shape[-1]))
            x = jnp.concatenate([token, x], axis=1)  # b s m
        x = self.dropout(self.positions(x) if self.positions else x)
        encoded = self.encoder(x, mask, return_maps=return_maps)
        x, maps = encoded if return_maps else (encoded, None)
        x = x[:, 0] if self.token is not None else x.mean(axis=1)  # b m
        return (self.output(x), maps) if return_maps else self.output(x)


def count_patches(image_size, patch):
    """Number of patches of a square picture: ``(image_size / patch)²``."""
    if not 1 <= patch <= image_size or image_size % patch:
        raise ValueError(
            f"image_size = {image_size} is not divisible by patch = {patch}"
        )
    return (image_size // patch) ** 2


def check_images(images, shape):
    """Pictures of a ``shape`` as floats; others, or whole numbers, raise an error."""
    if not isinstance(images.dtype, jnp.dtype):
        raise TypeError(f"expected an array of JAX or NumPy, got {type(images)}")
    if (found := tuple(images.shape))[1:] != shape:
        sizes = " ".join(map(str, shape))
        raise ValueError(f"expected pictures of shape b {sizes}, got {found}")
    if images.dtype == jnp.uint8:
        return images / 255
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise TypeError(f"expected pictures of floats or uint8, got {images.dtype}")
    return images


def move_pictures(images, angles, shifts):
    """Turn pictures about their middle, then shift them; black comes in from outside.

    ``b y x i -> b y x i`` in floats, interpolated linearly. ``angles``, ``b``, are in
    radians, positive from down to right; ``shifts``, ``b 2``, in pixels, down and right.
    """
    b, height, width, _ = images.shape
    middle = (height - 1) / 2, (width - 1) / 2
    rows = jnp.arange(height) - middle[0] - shifts[:, :1]  # b y
    columns = jnp.arange(width) - middle[1] - shifts[:, 1:]  # b x
    cos, sin = jnp.cos(angles)[:, None, None], jnp.sin(angles)[:, None, None]
    down = cos * rows[:, :, None] + sin * columns[:, None] + middle[0]  # b y x
    right = cos * columns[:, None] - sin * rows[:, :, None] + middle[1]
    moved, each = 0, jnp.arange(b)[:, None, None]
    for y in (jnp.floor(down), jnp.floor(down) + 1):
        for x in (jnp.floor(right), jnp.floor(right) + 1):
            share = (1 - jnp.abs(down - y)) * (1 - jnp.abs(right - x))
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            place = jnp.clip(y, 0, height - 1), jnp.clip(x, 0, width - 1)
            pixels = images[each, *(at.astype(int) for at in place)]  # b y x i
            moved = moved + (share * inside)[..., None] * pixels
    return moved


def augment(uniforms, images, labels, *, degrees=0, pixels=0, flip=False):
    """Pictures turned, shifted and mirrored by chance, and their labels as they are.

    ``uniforms`` ``b 8`` are in [0, 1); ``images``, ``b y x i``, floats or ``uint8``. Turns
    and shifts are up to ``degrees`` and ``pixels``; ``flip`` mirrors every second picture.
    """
    images = images / 255 if images.dtype == jnp.uint8 else images
    if flip:
        mirrored = (uniforms[:, 3] < 0.5)[:, None, None, None]
        images = jnp.where(mirrored, images[:, :, ::-1], images)
    if not (degrees or pixels):
        return images, labels
    angles = (2 * uniforms[:, 0] - 1) * math.radians(degrees)
    return move_pictures(images, angles, (2 * uniforms[:, 1:3] - 1) * pixels), labels
