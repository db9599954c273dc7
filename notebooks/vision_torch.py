# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,mystnb,-all
#     formats: ipynb,py:percent
#     notebook_metadata_filter: -jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown] tags=["shared"]
# # Pictures as sequences
#
# By the end you can read pictures with a **vision Transformer**, train it with
# augmentation, test where it looks, reuse it for new classes, and train one on your own
# photos. You need: the encoder, positions, and the reverse task.
#
# A text is a sequence of words. A photo has only pixels: at 224 × 224 about 50,000. If
# each were an element of the sequence, a single attention map would have 50,000² = 2.5
# billion weights. How can the encoder of the earlier chapters read a picture, without
# any change?

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [vision_jax](vision_jax.ipynb).
# Before it comes [finding the odd one out, in PyTorch](anomaly_torch.ipynb).

# %% tags=["shared", "setup"]
# In Colab this fetches the helpers of the book; anywhere else it does nothing.
import os
import subprocess
import sys

REPOSITORY = "https://github.com/example/transformers-side-by-side"

if "google.colab" in sys.modules and not os.path.isdir("helpers"):
    folder = REPOSITORY.rsplit("/", 1)[-1]
    if not os.path.isdir(folder):
        clone = ["git", "clone", "--quiet", "--depth", "1", REPOSITORY, folder]
        if subprocess.run(clone, check=False).returncode:
            sys.exit(f"{REPOSITORY} cannot be fetched: a placeholder, or not reached")
    os.chdir(os.path.join(folder, "notebooks"))
    sys.path.insert(0, os.getcwd())

# %% tags=["torch", "imports"]
import math
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC
from torch import nn

from helpers.data import photos, pictures
from helpers.engine.settings import Pictures
from helpers.engine.shapes import (  # as_numpy(): the way back to NumPy
    as_numpy,
    check_shape,
)
from helpers.engine.weights import (
    count_parameters,
    download_link,
    from_arrays,
    to_arrays,
)
from helpers.exercises import check  # of what you write
from helpers.show import drawing, plots
from helpers.show.patches import (
    erasing,
    patch_sequence,
    position_similarity,
)
from helpers.show.prose import (
    recorded,
    say,
    table,
    word,
)  # say() prints a sentence with numbers

# Built in the chapters on the encoder block and on positions, and a training loop:
from helpers.torch import (
    POSITIONS,
    Encoder,
    attention_maps,
    build,
    check_images,
    count_patches,
    cross_entropy,
    dense,
    evaluate,
    fit,
    full_float32,
    pick,
)

# %% tags=["torch", "experiment"]
# Experiment: device, style, and the names floats and framework
device = "cuda" if torch.cuda.is_available() else "cpu"
plots.use_style()
build = partial(build, device=device)  # models are made on this device
floats = partial(torch.as_tensor, dtype=torch.float32, device=device)
framework = "torch"
source = pictures.source()  # of photos of yours: $PHOTOS
POOLS = {"token": 1, "mean": 0}  # elements in front of the patches
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## Patches are the words of a picture
#
# Cut the picture into squares, its **patches**, and read them row by row. A patch is to
# a picture what a word is to a sentence: that is the idea of the vision Transformer, or
# **ViT** ([Dosovitskiy et al. 2021](https://arxiv.org/abs/2010.11929)).

# %% tags=["shared"]
settings = Pictures()  # the main ones are named below
parts, names = pictures.load("digits", settings.seed)
x_test, y_test = parts["test"]  # n y x i, n

# %% [markdown] tags=["shared"]
# $H \times H$ pixels in patches of $p \times p$ give $N = (H/p)^2$ patches, each a
# vector $x_n$ of $p \cdot p \cdot i$ numbers; $i$ is the number of channels, three in a
# colour photo. For a photo of 224 × 224, $p = 16$ gives 196 patches, and a map of
# $196^2$ weights; halving $p$ makes four times as many patches, and a map sixteen times
# as large. Our data are scikit-learn's grey digits: $H = 8$, and $p = 2$ gives 16
# patches of 4 numbers.

# %% mystnb={"image": {"alt": "Left, a handwritten digit of eight by eight pixels with a grid of four by four squares. Right, the sixteen squares one by one, numbered from 0 to 15 in the same order."}} tags=["shared", "figure"]
patch_sequence(x_test[0], settings.patch)

# %% [markdown] tags=["torch"]
# `reshape` splits both sides into patches and pixels, `permute` brings the pixels of a
# patch together. [einops](https://einops.rocks) has one line for both:
# `rearrange(images, "b (h p) (w q) i -> b (h w) (p q i)", p=patch,
# q=patch)`. The channels come last, as in NumPy; PyTorch's own layers want them first,
# `b i y x`.


# %% tags=["torch"]
def cut_patches(images, patch):
    """Cut pictures into patches, row by row: ``b y x i -> b n (p p i)``."""
    if images.ndim != 4 or images.shape[1] % patch or images.shape[2] % patch:
        raise ValueError(
            f"expected pictures b y x i whose sides are multiples of patch = {patch}, "
            f"got shape {tuple(images.shape)}"
        )
    b, y, x, i = images.shape
    cut = images.reshape(b, y // patch, patch, x // patch, patch, i)
    return cut.permute(0, 1, 3, 2, 4, 5).reshape(b, -1, patch * patch * i)


# %% [markdown] tags=["shared"]
# A dense layer then turns each patch into a vector of the model, $z_n = x_n W + b$.
# Since all patches get the same layer, cut and layer together are a **convolution**:
# $m$ *kernels* of $p \times p$ pixels, moved in steps (*strides*) of $p$.

# %% tags=["torch", "check"]
# Checked: patches come row by row; cut and dense equal a convolution with stride p
photo = load_sample_images().images[0][100:324, 200:424]  # 224 × 224 pixels, y x i
cut = as_numpy(cut_patches(floats(photo[None] / 255), 16))  # b n i
check_shape(cut, "b n i", b=1, n=196, i=768)
for n, patch in ((0, photo[:16, :16]), (15, photo[16:32, 16:32])):
    np.testing.assert_allclose(cut[0, n], patch.ravel() / 255, atol=1e-6)
embed = build(dense, 768, 48).double()
conv = build(nn.Conv2d, 3, 48, 16, stride=16).double()
kernel = embed.weight.reshape(48, 16, 16, 3).permute(0, 3, 1, 2)  # m i y x
conv.load_state_dict({"weight": kernel, "bias": embed.bias})
by_conv = conv(floats(photo[None] / 255).double().permute(0, 3, 1, 2))  # b m y x
expected = as_numpy(by_conv).reshape(48, -1).T
np.testing.assert_allclose(as_numpy(embed(floats(cut).double()))[0], expected)

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** A photo of 32 × 32 pixels with three channels is cut with
# $p = 4$ for a model of size $m = 96$. How many patches, numbers in each, and weights
# in the dense layer `embed` are there? Which weights of a trained model no
# longer fit photos of 64 × 64?

# %% tags=["shared", "answer"]
n, size = count_patches(32, 4), 4 * 4 * 3
assert (n, size, size * 96) == (64, 48, 4608)
say(
    f"There are $(32/4)^2 = {n}$ patches of $4 \\cdot 4 \\cdot 3 = {size}$ numbers, "
    f"and `embed` has $48 \\cdot 96 = {size * 96:,}$ weights. For photos of 64 × 64 "
    "only a learned table of positions no longer fits, as it has a row for each patch; "
    "the usual remedy is to interpolate its rows."
)

# %% [markdown] tags=["shared"]
# ## A class token collects what the output needs
#
# The encoder returns one vector for each patch, but we want a single output, the class.
# ViT puts one more element in front, a learned vector that belongs to no patch: the
# **class token**, known from [BERT](https://arxiv.org/abs/1810.04805). It attends to
# all patches, and only its vector after the last block goes to the output, so training
# makes it collect what tells the classes apart. The alternative is the mean over the
# vectors of all patches, **mean pooling**.

# %% mystnb={"image": {"alt": "Two flows side by side. Left, the predictor of the chapter on positions: embed, positions, encoder, hidden, output for each element. Right, the vision Transformer: a picture is cut into patches, embed, a class token in front, positions, the same encoder, and the output of its first element only. Frames mark what is new: the patches, the token, and the choice of the first element."}} tags=["shared", "figure"]
drawing("vision-transformer")

# %% [markdown] tags=["shared"]
# The rest is known: `dense`, the pre-norm `Encoder` with GELU and a final norm, and
# positions. Without positions, a picture is a bag of patches (see the extra).


# %% tags=["torch"]
class VisionTransformer(nn.Module):
    """One output vector for each picture: ``b y x i -> b c``."""

    def __init__(
        self, image_size, n_channels, m, n_outputs, *, patch, n_blocks, n_heads, f,
        pool="token", positions="learned", **options,
    ):  # fmt: skip
        super().__init__()
        kind, options["attention"] = pick(POSITIONS, positions, "positions")
        length = (front := pick(POOLS, pool, "pool")) + count_patches(image_size, patch)
        self.shape, self.patch = (image_size, image_size, n_channels), patch
        self.embed = dense(patch * patch * n_channels, m)
        token = 0.02 * torch.randn(1, front, m)
        self.token = nn.Parameter(token) if front else None
        self.positions = kind(m, length) if kind else None
        self.dropout = nn.Dropout(options.get("dropout", 0.0))
        options = {"activation": "gelu", "norm_first": True, **options}
        self.encoder = Encoder(n_blocks, m, n_heads, f, **options)
        self.output = dense(m, n_outputs)

    def forward(self, images, mask=None, *, return_maps=False):
        images = check_images(images, self.shape)
        x = self.embed(cut_patches(images, self.patch))  # b n m
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)  # b s m
        x = self.dropout(self.positions(x) if self.positions else x)
        encoded = self.encoder(x, mask, return_maps=return_maps)
        x, maps = encoded if return_maps else (encoded, None)
        x = x[:, 0] if self.token is not None else x.mean(dim=1)  # b m
        return (self.output(x), maps) if return_maps else self.output(x)


# %% tags=["shared"]
vit = build(VisionTransformer, seed=settings.seed, **settings.model)
logits, maps = attention_maps(vit, floats(x_test))  # no dropout: b c, l b h s s
tuple(logits.shape), tuple(maps.shape)  # s = 17: the token and 16 patches

# %% tags=["shared", "check"]
# Checked: it is the known encoder behind the token and the patches, step by step
arrays, images = to_arrays(vit), floats(x_test)
token = np.repeat(arrays["token"], len(x_test), axis=0)  # b 1 m
with full_float32():
    expected = as_numpy(attention_maps(vit, images)[0])
    embedded = as_numpy(vit.embed(cut_patches(images, settings.patch)))  # b n m
    placed = np.concatenate([token, embedded], axis=1) + arrays["positions.table"]
    by_hand = as_numpy(vit.output(vit.encoder(floats(placed))))[:, 0]
np.testing.assert_allclose(by_hand, expected, atol=1e-5)
sizes = {"l": settings.n_blocks, "b": len(x_test), "h": settings.n_heads, "s": 17}
check_shape(maps, "l b h s s", **sizes)
assert vit.encoder.norm is not None

# %% [markdown] tags=["shared"]
# ## It learns digits, but a support vector machine beats it
#
# Of the digits, 1,293 are for training, 144 for validation and 360 for the test. `fit`,
# from the reverse chapter, keeps the weights with the best validation accuracy.

# %% tags=["shared", "say"]
say(
    f"The ViT has {settings.n_blocks} blocks of {settings.n_heads} heads, $m$ = "
    f"{settings.m}, $f$ = {settings.f}: {count_parameters(vit):,} parameters. It sees "
    f"{settings.epochs} epochs in batches of {settings.batch_size}; the rate rises for "
    f"{settings.warmup} updates to {settings.learning_rate}, high for a Transformer, "
    "but this one is small."
)

# %% tags=["shared"]
history = fit(
    vit, cross_entropy, parts["train"], settings,
    validation=parts["validation"], bar=False,
)  # fmt: skip

# %% [markdown] tags=["shared"]
# Its rivals are logistic regression and a support vector machine (SVM), on the 64
# pixels as they are. A ViT with mean pooling and a convolutional net of the same size
# (see the extra) were trained beforehand: the last column is [a
# record](../book/how-this-was-built.md) of all, the mean over five other seeds.


# %% tags=["shared", "experiment"]
# Experiment: accuracy of the ViT and of two models of scikit-learn; the record
def trained(model, settings, data=parts, augment=None):
    """Train a model as above, and return it."""
    given = {"validation": data["validation"], "augment": augment, "bar": False}
    fit(model, cross_entropy, data["train"], settings, **given)
    return model


def accuracy(model, images, labels):
    """Share of pictures whose class a model of this page or of scikit-learn finds."""
    if hasattr(model, "score"):
        return model.score(images.reshape(len(images), -1), labels)
    at_once = {"batch_size": len(y_test)}  # one shape: less to compile
    return evaluate(model, cross_entropy, (images, labels), **at_once)["accuracy"]


flat, y_train = parts["train"][0].reshape(settings.n_train, -1), parts["train"][1]
rivals = {"logistic regression": LogisticRegression(max_iter=1000), "SVM": SVC()}
rivals = {name: rival.fit(flat, y_train) for name, rival in rivals.items()}
rivals["ViT, class token"] = vit

# %% tags=["shared", "say"]
seeds = recorded(f"vision-seeds-{framework}")[-1]["figures"]  # of a model: five numbers
on_test = {name: accuracy(rival, x_test, y_test) for name, rival in rivals.items()}
rows = []
for name in (*rivals, "ViT, mean", "convolutions"):
    here = f"{on_test[name]:.1%}" if name in rivals else "–"
    rows.append([name, here, f"{np.mean(seeds['test digits'][name]):.1%}"])
p = on_test["ViT, class token"]
error = 100 * np.sqrt(p * (1 - p) / len(y_test))
svm_seeds, vit_seeds = (seeds["test digits"][n] for n in ("SVM", "ViT, class token"))
names_of_columns = ["model", "test digits", "mean of five seeds"]
say(
    f"{table(names_of_columns, *rows)}\n\n"
    f"The standard error of one such accuracy is about {error:.1f} points; still, the "
    f"SVM is {word('above', svm_seeds, vit_seeds)} the ViT with each of the five seeds."
)

# %% tags=["shared", "check"]
# Checked: the loss falls, and the ViT learns far more than guessing
in_training = history["loss"].reshape(settings.epochs, -1).mean(axis=1)
for loss in (in_training, history["validation_loss"]):
    assert loss[-1] < loss[0] / 2
assert on_test["ViT, class token"] > 0.85 and on_test["SVM"] > 0.95

# %% [markdown] tags=["shared"]
# A convolution looks at neighbours. Shift the picture, and its outputs shift, too: it
# is **equivariant**. What a model assumes before any example is its **inductive bias**;
# a ViT assumes little, and has to learn what a shift does. In figure 3 of [Dosovitskiy
# et al.](https://arxiv.org/abs/2010.11929), convolutions are ahead with 1.3 million
# photos, and ViTs with 300 million. With strong augmentation and long training, 1.3
# million are enough for a ViT ([Touvron et al.
# 2021](https://arxiv.org/abs/2012.12877)).
#
# ## Augmentation teaches what a shift leaves unchanged
#
# **Augmentation** changes each training picture a little whenever it is used, but not
# its class: here it is turned by up to twelve degrees and shifted by up to one pixel.
# (A mirrored digit would be wrong.) The `uniforms` are random numbers from 0 to 1,
# drawn for each picture: one for the angle, two for the shift, one to mirror.

# %% [markdown] tags=["torch"]
# The data stay on the model's device, and `fit` calls `augment` there for each batch.
# In your own code, `torchvision.transforms.v2` does such things.


# %% tags=["torch"]
def augment(uniforms, images, labels, *, degrees=0, pixels=0, flip=False):
    """Pictures turned, shifted and mirrored by chance: ``b y x i -> b y x i``."""
    images = images / 255 if images.dtype == torch.uint8 else images
    if flip:
        mirrored = (uniforms[:, 3] < 0.5)[:, None, None, None]
        images = torch.where(mirrored, images.flip(2), images)
    if not (degrees or pixels):
        return images, labels
    angles = (2 * uniforms[:, 0] - 1) * math.radians(degrees)
    return move_pictures(images, angles, (2 * uniforms[:, 1:3] - 1) * pixels), labels


# %% tags=["torch", "experiment"]
# Experiment: the function move_pictures
def move_pictures(images, angles, shifts):
    """Turn pictures about their middle, then shift: ``b y x i -> b y x i``."""
    (b, height, width, _), device = images.shape, images.device
    middle = (height - 1) / 2, (width - 1) / 2
    rows = torch.arange(height, device=device) - middle[0] - shifts[:, :1]  # b y
    columns = torch.arange(width, device=device) - middle[1] - shifts[:, 1:]  # b x
    cos, sin = torch.cos(angles)[:, None, None], torch.sin(angles)[:, None, None]
    down = cos * rows[:, :, None] + sin * columns[:, None] + middle[0]  # b y x
    right = cos * columns[:, None] - sin * rows[:, :, None] + middle[1]
    moved, each = 0, torch.arange(b, device=device)[:, None, None]
    for y in (down.floor(), down.floor() + 1):
        for x in (right.floor(), right.floor() + 1):
            share = (1 - (down - y).abs()) * (1 - (right - x).abs())
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            place = y.clamp(0, height - 1).long(), x.clamp(0, width - 1).long()
            moved = moved + (share * inside)[..., None] * images[each, *place]
    return moved


# %% tags=["shared"]
turn_and_shift = partial(augment, degrees=12, pixels=1)

# %% mystnb={"image": {"alt": "A row of eight small pictures: a handwritten digit, and the same digit turned and shifted a little in seven ways."}} tags=["shared", "figure"]
uniforms = np.random.default_rng(0).random((7, 8))
same_digit = floats(np.repeat(x_test[:1], 7, axis=0)), y_test[:7]
turned, _ = turn_and_shift(floats(uniforms), *same_digit)  # seven versions of one digit
row = np.concatenate([x_test[:1], as_numpy(turned)])[..., 0]
title = ["a digit, and seven versions of it"]
plots.pictures((255 * row[None]).round().astype(np.uint8), titles=title)

# %% [markdown] tags=["shared"]
# To measure what it teaches, we shift each test picture by one pixel, an eighth of its
# width. Validation pictures, shifted in the same way, choose the weights. A shift up or
# down also pushes a row of ink off the picture.


# %% tags=["shared"]
def moved(images, labels):
    """Each picture shifted by one pixel up, down, left and right."""
    steps = (-1, 0), (1, 0), (0, -1), (0, 1)  # (down, right)
    shifted = [pictures.shifted(images, *step) for step in steps]
    return np.concatenate(shifted), np.tile(labels, 4)


longer = replace(settings, epochs=3 * settings.epochs)  # more pictures to learn
to_move = parts | {"validation": moved(*parts["validation"])}  # chooses the weights
augmented = build(VisionTransformer, seed=settings.seed, **longer.model)
augmented = trained(augmented, longer, to_move, turn_and_shift)
rivals["ViT, augmented"], moved_test = augmented, moved(x_test, y_test)

# %% tags=["shared", "say"]
on_test["ViT, augmented"] = accuracy(augmented, x_test, y_test)
on_moved = {name: accuracy(rival, *moved_test) for name, rival in rivals.items()}
rows, moved_seeds = [], seeds["shifted by one pixel"]
for name in (*list(rivals)[1:], "convolutions", "convolutions, augmented"):
    both = (on_test, on_moved) if name in rivals else ()
    here = [f"{found[name]:.1%}" for found in both] or ["–", "–"]
    rows.append([name, *here, f"{np.mean(moved_seeds[name]):.1%}"])
with_it, without = moved_seeds["ViT, augmented"], moved_seeds["ViT, as long"]
by_conv, by_vit = moved_seeds["convolutions"], moved_seeds["ViT, class token"]
names_of_columns = ["model", "test digits", "shifted", "shifted, five seeds"]
say(
    f"{table(names_of_columns, *rows)}\n\n"
    "Shifts cost all models accuracy, but with every seed the convolutions find "
    f"{word('more', by_conv, by_vit)} of the shifted digits than a ViT with the same "
    "training pictures. With augmentation, the ViT finds "
    f"**{on_moved['ViT, augmented']:.0%}** of them. Three times the epochs alone do "
    f"not do it: they give {np.mean(without):.0%}, {word('less', without, with_it)} "
    "with every seed."
)

# %% tags=["shared", "check"]
# Checked: a shift up or down cuts ink off; all lose accuracy; augmentation teaches it
assert (x_test[:, [0, -1]].sum(axis=(2, 3)) > 0).all()
assert all(on_moved[name] < on_test[name] - 0.1 for name in list(rivals)[:3])
assert on_moved["ViT, augmented"] > on_moved["ViT, class token"] + 0.2
middle = np.full((7, 8), 0.5)  # neither turned nor shifted
middle[1, 1] = 1 - 1e-7  # but the second: one pixel down
both = as_numpy(turn_and_shift(floats(middle), *same_digit)[0])[:2]
expected = pictures.shifted(x_test[:1], 1, 0)[0]
np.testing.assert_allclose(both, [x_test[0], expected], atol=1e-5)

# %% [markdown] tags=["shared"]
# **Exercise 2, one change of code.** Is augmentation only for neural nets? Train an SVM
# on the training pictures *and* `moved(*parts["train"])`.

# %% tags=["shared", "answer"]
x_more, y_more = moved(*parts["train"])
more = np.concatenate([flat, x_more.reshape(-1, 64)])
second = SVC().fit(more, np.concatenate([parts["train"][1], y_more]))
svm_moved = accuracy(second, *moved_test)
assert svm_moved > on_moved["SVM"] + 0.2
say(
    f"It finds **{svm_moved:.1%}** of the shifted digits instead of "
    f"{on_moved['SVM']:.1%}, and {accuracy(second, x_test, y_test):.1%} of the others: "
    "augmentation changes the data, so it can help any model. (And the lost ink was "
    "not the reason.) But this SVM has seen exactly the four shifts of the test; "
    "rotations would need more copies still."
)

# %% [markdown] tags=["shared"]
# ## Attention shows where the class token looks, not why
#
# The weights that the class token gives to the patches make a map, here the mean over
# the heads of the last block. (By then, each patch's vector contains others: [Abnar &
# Zuidema 2020](https://arxiv.org/abs/2005.00928). Whether attention explains at all is
# disputed: see the reverse task.) Are its largest weights the reason for the class? We
# erase the four patches with the most attention, of sixteen, and see how far the
# probability of the chosen class falls.

# %% tags=["shared", "experiment"]
# Experiment: where the class token looks, pictures with patches erased, probabilities
logits, maps = map(as_numpy, attention_maps(augmented, floats(x_test)))
looks = maps[-1].mean(axis=1)[:, 0, 1:]  # n s: last block, from the token to patches
guess = logits.argmax(axis=1)  # n


def erased(images, scores, n=4, p=settings.patch):
    """Pictures without the ``n`` patches that have the highest scores ``b n``."""
    rows, keep = images.shape[1] // p, np.ones(scores.shape, bool)
    np.put_along_axis(keep, np.argsort(-scores, axis=1)[:, :n], False, axis=1)
    pixels = keep.reshape(-1, rows, rows).repeat(p, 1).repeat(p, 2)  # b y x
    return images * pixels[..., None]


def chosen_probability(images):
    """Probability of the class chosen for the whole picture: ``n``."""
    z = as_numpy(attention_maps(augmented, floats(images))[0])
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return z[np.arange(len(z)), guess] / z.sum(axis=1)


# %% tags=["shared", "experiment"]
# Experiment: the probability that each choice of four patches costs
def share_lost(scores):
    """Mean share of the probability that goes with the four highest scores."""
    return 1 - (chosen_probability(erased(x_test, scores)) / before).mean()


before, rng = chosen_probability(x_test), np.random.default_rng(0)
one_patch = np.eye(16)[:, None].repeat(len(x_test), 1)  # s n s
after = [chosen_probability(erased(x_test, only, 1)) for only in one_patch]
at_random = [share_lost(rng.random(looks.shape)) for _ in range(5)]  # draws
scores = {
    "most attention": looks,
    "most ink": x_test.reshape(-1, 4, 2, 4, 2).sum(axis=(2, 4)).reshape(-1, 16),
    "largest loss when erased alone": before[:, None] - np.stack(after, axis=1),
}
lost = {"at random": np.mean(at_random)}
lost |= {name: share_lost(score) for name, score in scores.items()}

# %% mystnb={"image": {"alt": "Five handwritten digits in three rows. Above, each digit with the class that the model chooses and its probability. In the middle, a map of four by four weights of the class token. Below, the digit without the four patches of the largest weights, and the probability of the same class."}} tags=["shared", "figure"]
shown = x_test[:5], looks[:5], erased(x_test[:5], looks[:5])
left = chosen_probability(erased(x_test, looks))[:5]
found = zip(guess[:5], before[:5], strict=True)
erasing(
    *shown, settings.patch, titles=[f"{c}: {p:.0%}" for c, p in found],
    captions=[f"{c}: {p:.0%}" for c, p in zip(guess[:5], left, strict=True)],
)  # fmt: skip

# %% tags=["shared", "say"]
rows = [[name, f"{share:.0%}"] for name, share in lost.items()]
at_seeds, looked_seeds, ink_seeds, most_seeds = seeds["probability lost"].values()
say(
    f"{table(['four patches erased', 'probability falls by'], *rows)}\n\n"
    "Even random patches cost something: ink is gone, and such pictures never came up "
    "in training. With five other seeds, those that the token attends to cost "
    f"{word('more', looked_seeds, at_seeds)}, so the map says something. But those "
    "with the most ink, which need no model, cost "
    f"{word('more', ink_seeds, looked_seeds)} still, and most of all those found by "
    "erasing one at a time. (Without some ink, an 8 may *be* a 3.)"
)

# %% tags=["shared", "check"]
# Checked: four patches are erased; those that erasing finds cost more than chance
gone = erased(1 + x_test, looks) == 0
assert (gone.sum(axis=(1, 2, 3)) == 4 * settings.patch**2).all()
assert lost["largest loss when erased alone"] > lost["at random"] + 0.1
assert (np.array(most_seeds) > ink_seeds).all()
np.testing.assert_allclose(maps.sum(axis=-1), 1, atol=1e-5)

# %% [markdown] tags=["shared"]
# ## Fine-tuning a trained trunk learns new classes from few pictures
#
# A ViT without its output layer, its **trunk** or *backbone*, can be trained on classes
# with many pictures and reused for others with few. **Fine-tuning** trains everything,
# beginning with the weights of the trunk. A **linear probe** keeps the trunk **frozen**
# (see the extra on weights), and fits only a new output layer, here a logistic
# regression. We train a trunk on the digits 0 to 7, and then show it four pictures each
# of 8 and 9.


# %% tags=["shared", "experiment"]
# Experiment: pictures of the digits 0 to 7, and of the new classes
def only(part, classes):
    """Pictures of consecutive classes, with labels from 0 on."""
    images, labels = part
    chosen = np.isin(labels, classes)
    return images[chosen], labels[chosen] - np.int32(min(classes))


known_digits = {name: only(part, range(8)) for name, part in parts.items()}
both = zip(*(only(part, [8, 9]) for part in parts.values()), strict=True)
images, labels = (np.concatenate(arrays) for arrays in both)
rest = images[100:], labels[100:]  # the first hundred are there to learn from


def few(k, seed):
    """Rows of ``k`` pictures of each new class: ``k 2``."""
    order = np.random.default_rng(seed).permutation(100)
    return np.stack([order[labels[order] == c][:k] for c in (0, 1)], axis=1)


# %% tags=["shared"]
of_trunk = replace(settings, n_classes=8, n_train=len(known_digits["train"][0]))
trunk = build(VisionTransformer, seed=settings.seed, **of_trunk.model)
trunk = trained(trunk, of_trunk, known_digits, turn_and_shift)


def with_trunk(trunk, settings):
    """A new model with the weights of a trained one, all but the output layer."""
    model = build(VisionTransformer, seed=settings.seed, **settings.model)
    new, old = to_arrays(model), to_arrays(trunk)
    from_arrays(model, {k: (new if "output" in k else old)[k] for k in new})
    return model


# %% tags=["shared", "experiment"]
# Experiment: three ways to learn an 8 and a 9 from few pictures
ways = {"linear probe": None, "fine-tuning": 1e-3, "from scratch": 3e-3}  # peak rates
tuned = replace(settings, n_classes=2, batch_size=16, n_train=640, epochs=1, warmup=4)
bare = with_trunk(trunk, replace(settings, n_classes=(m := settings.m)))
same = {"output.weight": np.eye(m), "output.bias": np.zeros(m)}  # changes nothing
from_arrays(bare, to_arrays(bare) | same)
seen = as_numpy(attention_maps(bare, floats(images))[0])  # n m


def learned(way, picked, seed):
    """Accuracy on the rest after learning from a few pictures ``k 2``."""
    if way == "linear probe":
        x, y = seen[picked.ravel()], labels[picked.ravel()]
        return LogisticRegression(max_iter=1000).fit(x, y).score(seen[100:], rest[1])
    task = replace(tuned, learning_rate=ways[way], seed=seed)
    model = build(VisionTransformer, seed=task.seed, **task.model)
    model = model if way == "from scratch" else with_trunk(trunk, task)
    in_turn = {"batches": lambda _: np.resize(picked, (40, 16))}  # 8 and 9
    fit(model, cross_entropy, (images, labels), task, bar=False, **in_turn)
    return evaluate(model, cross_entropy, rest)["accuracy"]


# %% tags=["shared", "say"]
k = 4  # pictures of each class, in five draws
found = {way: [learned(way, few(k, n), n) for n in range(5)] for way in ways}
mean = {way: np.mean(x) for way, x in found.items()}
rows = [[way, f"{mean[way]:.1%} ± {np.std(x):.1%}"] for way, x in found.items()]
names_of_columns = ["", f"accuracy with {k} pictures of each (guessing: 50%)"]
of_seeds = seeds["two new classes"]
tuned_seeds, scratch_seeds = (
    [of_seeds[f"{way}, {n} of each"] for n in (4, 16)]
    for way in ("fine-tuning", "from scratch")
)
say(
    f"{table(names_of_columns, *rows)}\n\n"
    f"(Mean and standard deviation of {len(found['fine-tuning'])} draws; the probe is "
    "fitted until it converges, the others get 40 updates.) With five other seeds, "
    "fine-tuning was always "
    f"{word('higher', tuned_seeds, scratch_seeds)} than training from scratch, with 4 "
    "pictures of each and with 16. With 4, the probe was "
    f"{word('higher', of_seeds['linear probe, 4 of each'], scratch_seeds[0])}, too."
)

# %% tags=["shared", "check"]
# Checked: the trunk's features lead to its logits; fine-tuning learns
weights = to_arrays(trunk)
with full_float32():
    both = [as_numpy(attention_maps(x, floats(x_test))[0]) for x in (bare, trunk)]
z = both[0] @ weights["output.weight"] + weights["output.bias"]
np.testing.assert_allclose(z, both[1], atol=1e-4)
assert mean["fine-tuning"] > 0.6

# %% tags=["shared", "say"]
run = recorded("cifar10")[-1]
say(
    f"On CIFAR-10, a ViT of {run['n_parameters']:,} parameters got, from "
    f"scratch, **{run['test_accuracy']:.1%}** of the test after {run['updates']:,} "
    "updates (a [recorded](../book/how-this-was-built.md) run of "
    f"{run['seconds'] / 60:.0f} minutes; {run['about']['device']})."
)

# %% [markdown] tags=["shared"]
# Small convolutional nets pass [90 %](https://arxiv.org/abs/1512.03385) (He et al.
# 2016, table 6). A ViT-H/14 whose trunk has seen 300 million photos reaches
# [99.50 %](https://arxiv.org/abs/2010.11929) when fine-tuned (Dosovitskiy et al., table
# 2). So take a convolution, or fine-tune a published trunk (see the extras).

# %% [markdown] tags=["shared"]
# ## Extra: Your own photos take the same way
#
# Make one folder for each class, as for torchvision's `ImageFolder`, and set the
# environment variable `PHOTOS` to the folder that contains them. (`PHOTOS=cifar10`
# takes CIFAR-10, which `make data` downloads.) The middle square of a photo is scaled
# to 32 × 32 pixels, so cut large pictures into tiles first. A fifth of each class is
# kept for the test. But all photos of one scene, one slide or one person must be on the
# same side: then make two folders, `train` and `test`, with the same classes.


# %% tags=["shared"]
def learn_photos(source, updates=640, **changes):
    """A ViT that is trained on photos, their parts, and the names of the classes."""
    # as `make data`: squares of 32 × 32 pixels, in one file
    command = [sys.executable, "../tools/data.py", "--images-only", source]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    data, names = pictures.load(source, settings.seed)  # in three parts
    own = Pictures.for_data(data, updates, **changes)  # epochs for so many updates
    model = build(VisionTransformer, seed=own.seed, **own.model)
    return trained(model, own, data, partial(augment, flip=True)), data, names


def classify(path, model, names):
    """The class that the model gives a picture file, and its probability."""
    image = photos.read_picture(path)  # y x i, its middle square
    logits, _ = attention_maps(model, floats(image[None] / 255))  # 1 c
    p = np.exp(as_numpy(logits)[0] - as_numpy(logits).max())
    return names[p.argmax()], p.max() / p.sum()


# %% tags=["shared", "check"]
# Checked: a folder of two colours becomes squares in three parts, and a ViT learns it
folder, rng = Path(tempfile.mkdtemp()), np.random.default_rng(0)
for place, colour in enumerate(["blue", "red"]):
    (folder / colour).mkdir()
    for n in range(40):
        x = rng.integers(100, size=(36, 48, 3), dtype=np.uint8)
        x[..., 2 - 2 * place] += 150  # colours are red, green, blue
        Image.fromarray(x).save(folder / colour / f"{n}.png")
tiny = {"patch": 8, "n_blocks": 1, "m": 48, "f": 96, "dropout": 0}  # quick
with mock.patch.dict(os.environ, DATA_FOLDER=tempfile.mkdtemp()):  # not in yours
    colour_vit, data, both = learn_photos(str(folder), 80, **tiny)
assert data["test"][0].shape == (16, 32, 32, 3)
seen = {image.tobytes() for image in data["train"][0]}
assert both == ["blue", "red"] and len(seen) == len(data["train"][1]) == 58
assert not seen & {image.tobytes() for image in data["test"][0]}
assert accuracy(colour_vit, *data["test"]) > 0.9
assert classify(folder / "red" / "0.png", colour_vit, both)[0] == "red"

# %% tags=["shared", "say"]
if source == "digits":
    say("`PHOTOS` names no photos, so none were learned here.")
else:
    updates = 640 if device == "cpu" else 30_000
    own_vit, own, own_names = learn_photos(source, updates)
    own_accuracy = accuracy(own_vit, *own["test"])
    say(
        f"Of your photos, {len(own['test'][0])} are kept for the test. The ViT finds "
        f"the class of **{own_accuracy:.1%}** of them after about {updates:,} updates; "
        f"{1 / len(own_names):.0%} would be guessing."
    )

# %% [markdown] tags=["shared"]
# ## Extra: Without positions, a picture is a bag of patches
#
# How much of a digit is left without positions? And how much does a model with
# positions rely on them? We shuffle the patches of each test picture; the models with
# other positions were trained once, as the one above is, with five seeds.


# %% tags=["shared", "experiment"]
# Experiment: test pictures with shuffled patches, and the accuracy on them
def shuffled(images, p, seed=0):
    """Pictures with their patches in another order, each in its own: ``n y x i``."""
    n, side, _, i = images.shape
    cut = images.reshape(n, side // p, p, side // p, p, i).swapaxes(2, 3)
    rng, n_patches = np.random.default_rng(seed), (side // p) ** 2
    order = np.argsort(rng.random((n, n_patches)), axis=1)
    flat = np.take_along_axis(cut.reshape(n, -1, p * p * i), order[..., None], axis=1)
    return flat.reshape(cut.shape).swapaxes(2, 3).reshape(images.shape)


x_shuffled = shuffled(x_test, settings.patch)
vit_shuffled = accuracy(vit, x_shuffled, y_test)

# %% mystnb={"image": {"alt": "Two rows of eight handwritten digits. Above, as they are. Below, the same digits with their sixteen patches shuffled; hardly one can be recognised."}} tags=["shared", "figure"]
both = np.stack([x_test[:8], x_shuffled[:8]])[..., 0]
plots.pictures(
    (255 * both).round().astype(np.uint8), titles=["as they are", "patches shuffled"]
)

# %% tags=["shared", "say"]
bag = seeds["positions"]["none"]
rows = [["learned", f"{on_test['ViT, class token']:.1%}", f"{vit_shuffled:.1%}"]]
for kind in ("learned", "sinusoidal"):
    whole = seeds["test digits"]["ViT, class token"]
    whole = whole if kind == "learned" else seeds["positions"][kind]
    pair = whole, seeds["positions"][f"{kind}, patches shuffled"]
    rows.append([f"{kind} (mean of five seeds)", *(f"{np.mean(x):.1%}" for x in pair)])
rows.append(["none (mean of five seeds)", f"{np.mean(bag):.1%}", "the same"])
say(
    f"{table(['positions', 'test digits', 'patches shuffled'], *rows)}\n\n"
    f"Without positions a ViT still finds **{np.mean(bag):.0%}**: the strokes "
    "alone say much, even without their places. Shuffling changes nothing for it. "
    "Models with positions rely on them, and fall close to guessing."
)

# %% [markdown] tags=["shared"]
# Learned positions begin as random numbers. Does the ViT find out which patches are
# neighbours? Each small map below belongs to the patch at its place, and shows the
# cosine between its position vector and those of all 16 patches (dark: high), for the
# augmented ViT.

# %% mystnb={"image": {"alt": "Two grids of four by four small maps. Before training, each map is dark at its own patch only. Learned: around its own patch, each map has further dark cells, mostly neighbours."}} tags=["shared", "figure"]
start = build(VisionTransformer, seed=settings.seed, **settings.model)
tables = {
    "before training": to_arrays(start)["positions.table"][1:],  # without the token
    "learned": to_arrays(augmented)["positions.table"][1:],
}


def neighbours(vectors):
    """Mean cosine of patches that share a side, and of the others."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    at = np.stack(np.divmod(np.arange(16), 4), axis=1)  # n 2: row and column
    distance = np.abs(at[:, None] - at).sum(axis=-1)  # n n
    cosine = unit @ unit.T
    return cosine[distance == 1].mean(), cosine[distance > 1].mean()


alike = {name: neighbours(vectors) for name, vectors in tables.items()}
position_similarity(tables)

# %% tags=["shared", "say"]
near, far = alike["learned"]
say(
    "Learned positions of patches that share a side have a mean cosine of "
    f"**{near:.2f}**, all other pairs {far:.2f}. Before training, both were close to "
    "0. So the augmented ViT has learned which patches are neighbours."
)

# %% tags=["shared", "check"]
# Checked: without positions, order has no effect; learned ones of neighbours are alike
without = replace(settings, positions="none")
bag_vit = build(VisionTransformer, seed=settings.seed, **without.model)
with full_float32():
    outputs = [attention_maps(bag_vit, floats(x))[0] for x in (x_test, x_shuffled)]
np.testing.assert_allclose(*map(as_numpy, outputs), atol=1e-5)
assert vit_shuffled < 0.5
sums = [x.sum(axis=(1, 2, 3)) for x in (x_test, x_shuffled)]
np.testing.assert_allclose(*sums, rtol=1e-5)
assert near - far > 0.15
assert np.abs(alike["before training"]).max() < 0.15

# %% [markdown] tags=["shared"]
# ## Extra: A convolutional net of the same size
#
# This is the rival of the section on digits; to train it, call
# `trained(build(ConvNet, 1, 10), settings)`.

# %% [markdown] tags=["torch"]
# `nn.Conv2d` wants the channels before the pixels.


# %% tags=["torch"]
class ConvNet(nn.Module):
    """Three convolutions, then the mean over all places: ``b y x i -> b c``."""

    def __init__(self, n_channels, n_outputs, widths=(24, 48, 64)):
        super().__init__()
        pairs = zip((n_channels, *widths), widths, strict=False)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)
        self.head = dense(widths[-1], n_outputs)

    def forward(self, images):
        x = images.permute(0, 3, 1, 2)  # b i y x
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            x = nn.functional.max_pool2d(x, 2) if number == 1 else x
        return self.head(x.mean(dim=(2, 3)))  # b c


# %% tags=["shared", "check"]
# Checked: the net is of the ViT's size, and ignores even shifts on a large empty sheet
conv_net = build(ConvNet, 1, 10, seed=settings.seed)
assert abs(count_parameters(conv_net) / count_parameters(vit) - 1) < 0.05
sheet = np.zeros((50, 32, 32, 1), np.float32)  # large and empty
sheet[:, 12:20, 12:20] = x_test[:50]
sheets = sheet, pictures.shifted(sheet, 2, -4)  # pooling in pairs: even steps
with full_float32():
    outputs = [as_numpy(conv_net(floats(x))) for x in sheets]
np.testing.assert_allclose(*outputs, atol=1e-5)

# %% [markdown] tags=["shared"]
# The mean over all places forgets where the digit was: on a large empty sheet, an even
# shift changes nothing, even without training.

# %% [markdown] tags=["shared"]
# ## Extra: Published weights fit after renaming
#
# Our ViT has the architecture of the published one, so its weights fit if the sizes
# agree. Names differ, and two layouts: a convolution's kernel is `m i y x`, and
# PyTorch's matrices are `out in`, those in our files `in out`. For torchvision:

# %% tags=["shared"]
TORCHVISION = {
    "class_token": "token", "conv_proj": "embed", "heads.head": "output",
    "encoder.pos_embedding": "positions.table", "encoder.ln.": "encoder.norm.",
    "layers.encoder_layer_": "blocks.", "ln_1": "norm1", "ln_2": "norm2",
    "mlp.0": "ffn.linear1", "mlp.3": "ffn.linear2",
    "self_attention.in_proj_": "attention.qkv.", "self_attention": "attention",
    "out_proj": "out",
}  # fmt: skip


def renamed(found, names):
    """Arrays of a published ViT under our names, and with our axes."""
    arrays = {}
    for name, x in found.items():
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        if x.ndim == 4:  # m i y x -> (y x i) m
            x = x.transpose(2, 3, 1, 0).reshape(-1, x.shape[0])
        arrays[name] = x.T if x.ndim == 2 and "embed" not in name else x
    return arrays | {"positions.table": arrays["positions.table"][0]}


# %% [markdown] tags=["torch"]
# In place of a download we make a small model of torchvision with random weights.

# %% tags=["torch", "experiment"]
# Experiment: a small ViT of torchvision, its weights, and its outputs
import torchvision

theirs = torchvision.models.VisionTransformer(
    8, 2, 2, 4, 48, 96, num_classes=10, norm_layer=partial(nn.LayerNorm, eps=1e-5)
)
theirs.to(device).eval()
torch.manual_seed(0)
for parameter in theirs.parameters():
    nn.init.normal_(parameter, std=0.2)
published = {name: as_numpy(x) for name, x in theirs.state_dict().items()}
in_colour = np.random.default_rng(0).random(
    (len(y_test), 8, 8, 3), np.float32
)  # b y x i
expected = as_numpy(theirs(floats(in_colour).permute(0, 3, 1, 2)))

# %% tags=["shared"]
sizes = {**settings.model, "n_channels": 3}
loaded = build(VisionTransformer, **sizes)
from_arrays(loaded, renamed(published, TORCHVISION))
with full_float32():
    outputs = as_numpy(attention_maps(loaded, floats(in_colour))[0])

# %% [markdown] tags=["torch"]
# To train only a new output layer, freeze the rest: such parameters get no gradient,
# and the optimizer skips them.


# %% tags=["torch"]
def freeze(model):
    """Options of ``fit``: none. Of the model only the output layer is trained."""
    model.requires_grad_(False)
    model.output.requires_grad_(True)
    return {}


# %% tags=["shared", "check"]
# Checked: the outputs are those of the published model; a frozen trunk stays
np.testing.assert_allclose(outputs, expected, atol=1e-4)
assert outputs.std() > 0.2
first, options = to_arrays(loaded), freeze(loaded)
options["batches"] = lambda _: np.arange(40 * 16).reshape(40, 16) % 64
noise = np.random.default_rng(1).random((64, 8, 8, 3), np.float32)
task = replace(tuned, n_classes=10, n_channels=3)
fit(loaded, cross_entropy, (noise, np.arange(64) % 10), task, **options, bar=False)
changed = {k for k, x in to_arrays(loaded).items() if not np.array_equal(x, first[k])}
assert changed == {"output.weight", "output.bias"}

# %% [markdown] tags=["shared"]
# Mind one number: torchvision's layer norm has $\epsilon = 10^{-6}$ where ours has
# $10^{-5}$. Here, both have ours; with downloaded weights, outputs differ a little.
#
# **Exercise 3, on paper.** [timm](https://github.com/huggingface/pytorch-image-models)
# has other names: `cls_token`, `pos_embed`, `patch_embed.proj`, `blocks.0.attn.qkv`,
# `blocks.0.attn.proj`, `blocks.0.mlp.fc1`, `blocks.0.mlp.fc2`, `norm` at the end, and
# `head`. Write the table for `renamed`.

# %% tags=["shared", "answer"]
TIMM = {
    "cls_token": "token", "pos_embed": "positions.table", "patch_embed.proj": "embed",
    "attn.qkv": "attention.qkv", "attn.proj": "attention.out", "head.": "output.",
    "mlp.fc1": "ffn.linear1", "mlp.fc2": "ffn.linear2",
    "blocks.": "encoder.blocks.", "norm.": "encoder.norm.",
}  # fmt: skip
timm_names = ["cls_token", "pos_embed", "patch_embed.proj.weight", "norm.bias"]
layers = "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"
timm_names += ["head.weight", *(f"blocks.1.{layer}.bias" for layer in layers)]
arrays = renamed({name: np.zeros((1, 1)) for name in timm_names}, TIMM)
assert set(arrays) <= set(to_arrays(loaded))
say(
    "Here any order will do. In `TORCHVISION`, `self_attention.in_proj_` must come "
    "before `self_attention`, which is a part of it. And `norm.` with its dot leaves "
    "`norm1` alone."
)

# %% [markdown] tags=["shared"]
# Our augmented ViT, which reads digits that you draw [in your
# browser](../book/playground.md), as a file:

# %% tags=["shared"]
download_link(augmented, f"vision_{framework}.safetensors")

# %% [markdown] tags=["torch"]
# ## Extra: A published trunk learns your photos
#
# To fine-tune on your own photos, take a trunk that has seen millions. This downloads a
# large file, so it does not run here:
#
# ```python
# from torch.utils.data import DataLoader
# from torchvision.datasets import ImageFolder
# from torchvision.models import ViT_B_16_Weights, vit_b_16
#
# weights = ViT_B_16_Weights.DEFAULT
# net = vit_b_16(weights=weights).to(device)
# own_photos = ImageFolder(folder, weights.transforms())  # as its training had them
# net.heads.head = nn.Linear(768, len(own_photos.classes), device=device)  # new
# optimizer = torch.optim.AdamW(net.parameters(), lr=3e-5)
# for images, labels in DataLoader(own_photos, 32, shuffle=True):
#     optimizer.zero_grad()
#     logits = net(images.to(device))
#     nn.functional.cross_entropy(logits, labels.to(device)).backward()
#     optimizer.step()
# ```
#
# This trains all of it, once through the photos; rates of 1e-5 to 1e-4 are usual.

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Two functions that make a sequence of a picture: patches, and the vectors that the
# encoder gets. `check` tries each on random arrays, and says what is wrong. Pictures
# need not be square.


# %% tags=["shared", "your-turn"]
def my_patches(images, patch):
    """Pictures cut into squares of ``patch`` pixels: ``b y x i -> b n (p p i)``.

    Patches are read row by row, and so are the pixels of each; the channels of a pixel
    stand together. Both sides are multiples of ``patch``.
    """
    ...


check("vision.patches", my_patches)


# %% tags=["shared", "your-turn"]
def my_tokens(patches, w, class_token, table):
    """What the encoder gets: ``b n i, i m, m, n+1 m -> b n+1 m``.

    The patches times ``w``, without a bias, behind the class token; then each element
    gets its row of ``table``, the learned positions.
    """
    ...


check("vision.tokens", my_tokens)


# %% tags=["torch", "answer"]
def my_patches(images, patch):
    cut = images.unfold(1, patch, patch).unfold(2, patch, patch)  # b rows columns c p p
    return cut.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2)


def my_tokens(patches, w, class_token, table):
    first = class_token.expand(len(patches), 1, -1)  # b 1 m
    return torch.cat([first, patches @ w], dim=1) + table


assert check("vision.patches", my_patches)
assert check("vision.tokens", my_tokens)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** A ViT is to get patches of half the side. What happens to the number of weights
# in the blocks of its encoder?
#
# <details><summary>Four times as many: there are four times as many patches.</summary>
#
# **No.** The work does grow with them, and the attention maps with their square. But no
# weight belongs to one patch.
#
# </details>
# <details><summary>A quarter: each patch has a quarter of the pixels.</summary>
#
# **No.** True of the layer that embeds them. The blocks get vectors of size $m$, as
# before.
#
# </details>
# <details><summary>It stays: the blocks have no weights for places.</summary>
#
# **Right.** The blocks use the same matrices for each element of the sequence, however
# long it is.
#
# </details>
#
# **2.** You put the class token behind the patches, with its own row of positions, and
# train anew. What changes?
#
# <details><summary>Nothing but the place where it is read.</summary>
#
# **Right.** Attention ignores the order of its elements. What tells them apart is their
# content and their row of positions.
#
# </details>
# <details><summary>It knows more: all patches are before it.</summary>
#
# **No.** Behind a causal mask it would. Here each element attends to all others,
# wherever it stands.
#
# </details>
# <details><summary>Each patch gets the wrong row of positions.</summary>
#
# **No.** All move by one place. But the rows are learned, and begin as random numbers.
#
# </details>
#
# **3.** A ViT without positions gets its patches row by row, as ever. What does it
# still know about places?
#
# <details><summary>Nothing: attention sees an unordered set.</summary>
#
# **No.** True of the patches, not of their pixels: a bag of patches is no bag of
# pixels.
#
# </details>
# <details><summary>Which patches are neighbours: they come in this order.</summary>
#
# **No.** Tempting, because we read them row by row. But attention ignores the order of
# a sequence.
#
# </details>
# <details><summary>Where each pixel stands within its patch.</summary>
#
# **Right.** Each pixel has its own row of the embedding matrix, so strokes on the left
# and on the right give different vectors.
#
# </details>
#
# **4.** A convolution moves its output along with a shifted picture. The net pools in
# pairs, and at the end takes the mean over all places. Can a shift still change the
# class?
#
# <details><summary>No: the mean of the same outputs is the same.</summary>
#
# **No.** True of even shifts on a large empty sheet. Otherwise something crosses the
# border, or pooling makes other pairs.
#
# </details>
# <details><summary>Yes: at the border, or if it is odd.</summary>
#
# **Right.** At a border a kernel meets padding, and pooling cuts a shifted picture into
# other pairs.
#
# </details>
# <details><summary>Yes, because the kernels have learned where digits stand.</summary>
#
# **No.** A dense layer has weights for each place. A kernel has the same ones for all
# places.
#
# </details>
#
# **5.** Without the patches that a ViT attends to most, the probability of its class
# falls. What shows that the map has found what matters?
#
# <details><summary>The fall itself: a cause was taken away.</summary>
#
# **No.** Erasing tests more than looking does. But any patches cost something: with
# them, ink goes.
#
# </details>
# <details><summary>A larger fall than when as many others are erased.</summary>
#
# **Right.** Others at random, or those with the most ink, for which one needs no model.
# Only the difference can belong to the map.
#
# </details>
# <details><summary>Equal maps in several heads.</summary>
#
# **No.** Agreement looks like evidence. But heads may agree on patches that the output
# hardly depends on.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * A picture is a sequence of patches. Halving the patch makes a map sixteen times as
#   large.
# * A class token, or the mean, makes one output of the encoder's vectors.
# * A convolution has neighbours and shifts built in; a ViT learns them, from many or
#   from augmented pictures.
# * Where a model looks is not why it decides. Erase, and measure.
# * With few pictures, fine-tune a trained trunk.

# %% [markdown] tags=["torch"]
# Next comes [a model that writes, in PyTorch](decoder_torch.ipynb).
