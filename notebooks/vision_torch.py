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
# augmentation, test where it looks, and let a published one learn your own photos.
# You need: the encoder, positions, and the reverse task. In a hurry? A program for your
# photos: [A published trunk](#a-published-trunk-can-learn-your-photos).
#
# A text is a sequence of words. A photo has only pixels: at 224 × 224 about 50,000. If
# each were an element of the sequence, a single attention map would have 50,000² = 2.5
# billion weights. How can the encoder of the earlier chapters read a picture, without
# any change?

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [vision_jax](vision_jax.ipynb).
# Before it comes [finding the odd one out, in PyTorch](anomaly_torch.ipynb).

# %% tags=["torch", "setup"]
# In Colab this fetches the helpers of the book; anywhere else it does nothing.
import os
import subprocess
import sys

REPOSITORY = "https://github.com/example/transformers-side-by-side"

if "google.colab" in sys.modules and not os.path.isfile("helpers/settings.py"):
    folder = REPOSITORY.rsplit("/", 1)[-1]
    if not os.path.exists(folder):
        clone = ["git", "clone", "--quiet", "--depth", "1", REPOSITORY, folder]
        if subprocess.run(clone, check=False).returncode:
            sys.exit(f"{REPOSITORY} cannot be fetched: a placeholder, or not reached")
    if not os.path.isfile(f"{folder}/notebooks/helpers/settings.py"):
        sys.exit(f"expected a clone of {REPOSITORY} in {folder}: rename what is there")
    os.chdir(os.path.join(folder, "notebooks"))
    sys.path.insert(0, os.getcwd())

import numpy as np
import torch
from torch import nn

from helpers.exercises import check
from helpers.settings import Settings
from helpers.show import download_link, drawing, plots, recorded, say, table
from helpers.torch import Encoder, LearnedPositions, attention_maps, dense
from helpers.torch.frameworks import cross_entropy, device, tensor
from helpers.torch.reverse import evaluate, fit
from helpers.weights import as_numpy, count_parameters, from_arrays, to_arrays

plots.use_style()
framework = "torch"
f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## Patches are the words of a picture
#
# Cut the picture into squares, its **patches**, and read them row by row. A patch is to
# a picture what a word is to a sentence: that is the idea of the vision Transformer, or
# **ViT** ([Dosovitskiy et al. 2021](https://arxiv.org/abs/2010.11929)).
#
# $H \times H$ pixels in patches of $p \times p$ give $N = (H/p)^2$ patches, each a
# vector $x_n$ of $p \cdot p \cdot i$ numbers; $i$ is the number of channels, three in a
# colour photo.
#
# | picture | $H$, $i$ | usual patch | $N$ | numbers in each |
# |---|---|---|---|---|
# | photo of ImageNet | 224, 3 | 16 × 16 | 196 | 768 |
# | photo of CIFAR | 32, 3 | 4 × 4 or 8 × 8 | exercise 1 | exercise 1 |
# | digit, on this page | 8, 1 | 2 × 2 | 16 | 4 |
#
# Our pictures are small, so that training takes seconds: handwritten digits of
# scikit-learn, in grey. A fifth of them is kept for the test, a tenth of the others for
# validation.

# %% tags=["shared"]
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def divide(part, share):
    """A part in two, the second with this share of each class: images and labels."""
    images, labels = part
    options = {"test_size": share, "stratify": labels, "random_state": 42}
    x, x_second, y, y_second = train_test_split(images, labels, **options)
    return (x, y), (x_second, y_second)


digits = load_digits()
images = (digits.images[..., None] / 16).astype(np.float32)  # n y x i, from 0 to 1
rest, test = divide((images, digits.target.astype(np.int32)), 0.2)
train, validation = divide(rest, 0.1)
x_test, y_test = test

# %% mystnb={"image": {"alt": "Left, a handwritten digit of eight by eight pixels with a grid of four by four squares. Right, the sixteen squares one by one, numbered from 0 to 15 in the same order."}} tags=["shared", "figure"]
p, ink = 2, {"cmap": "Greys", "vmin": 0, "vmax": 1}
options = {"width_ratios": [1, 3]}
fig, (left, right) = plots.panels_in_rows(2, None, (6, 1.9), None, None, **options)
left.imshow(x_test[0], **ink)
for line in np.arange(p, 8, p) - 0.5:
    left.axhline(line, color=plots.ORANGE, lw=0.9)
    left.axvline(line, color=plots.ORANGE, lw=0.9)
for n, (row, column) in enumerate(np.ndindex(4, 4)):
    patch = x_test[0, row * p :, column * p :][:p, :p]
    y, x = 1.8 * (n // 8), 1.2 * (n % 8)
    right.imshow(patch, extent=(x, x + 1, y + 1, y), **ink)
    square = [x, x + 1, x + 1, x, x], [y, y, y + 1, y + 1, y]
    right.plot(*square, color=plots.EDGE, lw=0.8)
    right.text(x + 0.5, y + 1.38, f"{n}", ha="center", va="center")
left.set(title="picture, p = 2", xticks=[], yticks=[])
right.set(title="N = 16 patches, in reading order", xlim=(-0.1, 9.5), ylim=(3.6, -0.1))
right.set_axis_off()
fig

# %% [markdown] tags=["torch"]
# `unflatten` splits both sides into patches and pixels, `transpose` brings the pixels
# of a patch together. [einops](https://einops.rocks) has one line for both:
# `rearrange(images, "b (h p) (w q) i -> b (h w) (p q i)", p=patch, q=patch)`. The
# channels come last, as in NumPy; PyTorch's own layers want them first, `b i y x`.


# %% tags=["torch"]
def cut_patches(images, patch):
    """Cut pictures into patches, row by row: ``b y x i -> b n (p p i)``."""
    if images.ndim != 4 or images.shape[1] % patch or images.shape[2] % patch:
        raise ValueError(
            f"expected pictures b y x i whose sides are multiples of patch = {patch}, "
            f"got shape {tuple(images.shape)}"
        )
    cut = images.unflatten(2, (-1, patch)).unflatten(1, (-1, patch))  # b h p w q i
    return cut.transpose(2, 3).flatten(3).flatten(1, 2)  # b n (p p i)


# %% [markdown] tags=["shared"]
# A dense layer then turns each patch into a vector of the model, $z_n = x_n W + b$. Cut
# and layer together are a **convolution** whose *kernels* of $p \times p$ pixels move
# in steps (*strides*) of $p$: each of the $m$ columns of $W$ is a kernel, the same for
# all patches. Published ViTs are mostly written so.

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** A photo of 32 × 32 pixels with three channels is cut with
# $p = 4$ for a model of size $m = 96$. How many patches, numbers in each, and weights
# in the dense layer are there? If each patch has a learned position, which weights of
# the trained model no longer fit photos of 64 × 64?

# %% tags=["shared", "answer"]
n, size = (32 // 4) ** 2, 4 * 4 * 3
say(
    f"There are $(32/4)^2 = {n}$ patches of $4 \\cdot 4 \\cdot 3 = {size}$ numbers, "
    f"and the layer has $48 \\cdot 96 = {size * 96:,}$ weights. For photos of 64 × 64 "
    "only the learned table of positions no longer fits, as it has a row for each "
    "patch; the usual remedy is to interpolate its rows."
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
# learned positions. Dropout comes in the blocks, after the positions and before the
# output layer. `sizes` are those of the encoder: `n_blocks`, `n_heads` and `f`.


# %% tags=["torch"]
class VisionTransformer(nn.Module):
    """One output vector for each picture: ``b y x i -> b c``."""

    def __init__(self, image_size, n_channels, m, n_outputs, patch, dropout=0, **sizes):
        super().__init__()
        self.shape = image_size, image_size, n_channels
        self.patch = patch
        self.embed = dense(patch * patch * n_channels, m)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, m))
        self.positions = LearnedPositions(m, 1 + (image_size // patch) ** 2)
        self.dropout = nn.Dropout(dropout)
        options = {"dropout": dropout, "activation": "gelu", "norm_first": True}
        self.encoder = Encoder(m=m, **sizes, **options)
        self.output = dense(m, n_outputs)

    def tokens(self, images):
        """What the encoder gets, the class token first: ``b y x i -> b s m``."""
        if images.shape[1:] != self.shape:
            raise ValueError(f"expected b {self.shape}, got {tuple(images.shape)}")
        x = self.embed(cut_patches(images, self.patch))  # b n m
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)  # b s m
        return self.dropout(self.positions(x))

    def forward(self, images):
        x = self.encoder(self.tokens(images))  # b s m
        return self.output(self.dropout(x[:, 0]))  # b c


# %% tags=["shared"]
sizes = {"image_size": 8, "n_channels": 1, "m": 48, "n_outputs": 10, "patch": 2}
sizes |= {"n_blocks": 2, "n_heads": 4, "f": 96}


# %% tags=["torch"]
def new_model(seed=42, **changes):
    """An untrained ViT of these sizes, or of others."""
    torch.manual_seed(seed)
    return VisionTransformer(**sizes | changes).to(device)


@torch.inference_mode()
def predict(model, images):
    """Logits of pictures, which may be arrays of NumPy: ``b y x i -> b c``."""
    return model(tensor(images))


# %% tags=["shared"]
vit = new_model()
logits = predict(vit, x_test)  # b c
encoded, maps = attention_maps(vit.encoder, vit.tokens(tensor(x_test)))  # b s m, …
tuple(logits.shape), tuple(encoded.shape), tuple(maps.shape)  # maps: l b h s s

# %% [markdown] tags=["shared"]
# $s = N + 1 = 17$: the token and 16 patches. `attention_maps`, from the chapter on the
# encoder, gives its outputs together with the maps of its blocks.

# %% tags=["shared", "check"]
# Checked: it is the known encoder behind the token and the patches, step by step
arrays = to_arrays(vit)
embedded = as_numpy(vit.embed(cut_patches(tensor(x_test), 2)))  # b n m
token = np.repeat(arrays["token"], len(x_test), axis=0)  # b 1 m
placed = np.concatenate([token, embedded], axis=1) + arrays["positions.table"]
encoded, _ = attention_maps(vit.encoder, tensor(placed))  # b s m
by_hand = as_numpy(vit.output(encoded[:, 0]))
np.testing.assert_allclose(by_hand, as_numpy(logits), atol=1e-5)

# %% [markdown] tags=["shared"]
# **Exercise 2, by hand.** ViT-B/16 reads photos of 224 × 224 with $m = 768$, $f = 4m$.
# For one photo, a block multiplies $12 s m^2$ pairs of numbers in its dense layers, and
# $2 s^2 m$ in its attention. You halve $p$. By what factor do the maps grow, and by
# what factor the work? From which $s$ on is attention the larger part of it?

# %% tags=["shared", "answer"]
short, long = [(224 // patch) ** 2 + 1 for patch in (16, 8)]
before, after = [12 * s * 768**2 + 2 * s**2 * 768 for s in (short, long)]
say(
    f"The sequence has {long} elements instead of {short}. So the maps have "
    f"**{(long / short) ** 2:.1f} times** as many weights, but a block multiplies only "
    f"**{after / before:.1f} times** as much: most of its work is in the dense layers, "
    f"which grow with $s$. From $s = 6m = {6 * 768:,}$ on, $2 s^2 m$ is larger than "
    "$12 s m^2$. For that, patches of these photos would have to be smaller than 4 × 4."
)

# %% [markdown] tags=["shared"]
# ## It learns digits, but a support vector machine beats it
#
# `fit` is the training loop of the reverse task; it keeps the weights that were best on
# the validation pictures. (For a program of your own, copy that loop, or take the
# folder `helpers` along.)

# %% tags=["shared"]
usual = {
    "batch_size": 64,
    "learning_rate": 3e-3,  # high for a Transformer, but this one is small
    "warmup": 50,  # updates
}
settings = Settings(n_train=len(train[0]), epochs=20, **usual)
options = {"validation": validation, "best": "accuracy"}
history = fit(vit, cross_entropy, train, settings, **options)
print(f"{count_parameters(vit):,} parameters, {settings.updates} updates")

# %% [markdown] tags=["shared"]
# Its rivals are logistic regression and a support vector machine (SVM), on the 64
# pixels as they are.

# %% tags=["shared"]
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC


def accuracy(model, images, labels):
    """Share of pictures whose class a ViT finds."""
    return evaluate(model, cross_entropy, (images, labels), batch_size=360)["accuracy"]


def flat(images):
    """Pictures as rows of numbers, for scikit-learn: ``n y x i -> n (y x i)``."""
    return images.reshape(len(images), -1)


regression = LogisticRegression(max_iter=1000).fit(flat(train[0]), train[1])
svm = SVC().fit(flat(train[0]), train[1])
on_test = {
    "logistic regression": regression.score(flat(x_test), y_test),
    "SVM": svm.score(flat(x_test), y_test),
    "ViT, class token": accuracy(vit, x_test, y_test),
}

# %% tags=["shared", "say"]
seeds = recorded(f"vision-seeds-{framework}")[-1]["figures"]  # of a model: five numbers
means = {name: f"{np.mean(x):.1%}" for name, x in seeds["test digits"].items()}
rows = [[name, f"{share:.1%}", means[name]] for name, share in on_test.items()]
say(table(["model", "test digits", "mean of five other runs"], *rows))

# %% tags=["shared", "check"]
# Checked: the ViT learns far more than guessing; the SVM is better with each seed
of_epochs = history["loss"].reshape(settings.epochs, -1).mean(axis=1)
for loss in (of_epochs, history["validation_loss"]):
    assert loss[-1] < loss[0] / 2
assert on_test["ViT, class token"] > 0.85 and on_test["SVM"] > 0.95
of_seeds = {name: np.array(x) for name, x in seeds["test digits"].items()}
assert (of_seeds["SVM"] > of_seeds["ViT, class token"]).all()

# %% [markdown] tags=["shared"]
# The last column is [a record](../book/how-this-was-built.md): five other seeds for
# split, weights and batches, the best epoch chosen by the loss. The SVM is above this
# untuned ViT with each seed.

# %% [markdown] tags=["shared"]
# **Exercise 3, predict, then run.** Give the output layer of the trained `vit` the mean
# of the 16 patch vectors in place of the token's: `attention_maps` returns them all.
# What accuracy do you expect? Which line of the class would you change to *train* a ViT
# with mean pooling?

# %% tags=["shared", "answer"]
encoded, _ = attention_maps(vit.encoder, vit.tokens(tensor(x_test)))  # b s m
pooled = as_numpy(vit.output(encoded[:, 1:].mean(1))).argmax(axis=1)
say(
    f"It finds **{(pooled == y_test).mean():.1%}** instead of "
    f"{on_test['ViT, class token']:.1%}: the output layer was trained with the token's "
    "vector, and no loss has asked the patches' last vectors for the class. To train "
    "it, put `x[:, 1:].mean(1)` in place of `x[:, 0]` in the last line. Five recorded "
    f"runs with the mean found {np.mean(seeds['test digits']['ViT, mean']):.1%} on "
    f"average, with the token {means['ViT, class token']}."
)

# %% [markdown] tags=["shared"]
# Why does the ViT not win? On aligned digits, pixels are enough for the SVM. And
# what a model assumes before any example is its **inductive bias**. A convolution
# assumes that neighbours belong together, and that a stroke is the same stroke
# anywhere: shift the picture, and its outputs shift, too (it is **equivariant**). A ViT
# assumes little, and has to learn what a shift does. In figure 3 of [Dosovitskiy et
# al.](https://arxiv.org/abs/2010.11929), convolutions are ahead with 1.3 million
# photos, and ViTs with 300 million; with strong augmentation, 1.3 million are enough
# ([Touvron et al. 2021](https://arxiv.org/abs/2012.12877)).
#
# ## Augmentation teaches what a shift leaves unchanged
#
# **Augmentation** changes each training picture a little whenever it is used, but not
# its class: here it is turned by up to twelve degrees and shifted by up to one pixel.
# (A mirrored digit would be wrong.) `fit` calls `augment` for each batch, with eight
# random numbers from 0 to 1 for each picture, the `uniforms`. Ours uses three of them,
# one for the angle and two for the shift. One of your own needs the same arguments.

# %% [markdown] tags=["torch"]
# For each pixel of the new picture, `move_pictures` computes the place in the old one
# that it comes from, and `grid_sample` interpolates there. For photos,
# `torchvision.transforms.v2` has all the usual changes.


# %% tags=["torch"]
def move_pictures(images, angles, shifts):
    """Turn square pictures about their middle, then shift: ``b y x i -> b y x i``."""
    images = images.movedim(-1, 1)  # b i y x
    cos, sin = angles.cos(), angles.sin()
    down, right = 2 * shifts.T / images.shape[-1]  # in halves of a side
    # where each output comes from: x and y, as affine functions of its place
    x_from = [cos, -sin, sin * down - cos * right]
    y_from = [sin, cos, -cos * down - sin * right]
    ways = torch.stack([*x_from, *y_from], dim=1).unflatten(1, (2, 3))
    grid = nn.functional.affine_grid(ways, images.shape, align_corners=False)  # b y x 2
    moved = nn.functional.grid_sample(images, grid, align_corners=False)  # by four
    return moved.movedim(1, -1)


# %% tags=["torch"]
def augment(uniforms, images, labels, degrees=12, pixels=1):
    """Pictures turned and shifted by chance, up to these: ``b y x i -> b y x i``."""
    angles = (2 * uniforms[:, 0] - 1) * (degrees * np.pi / 180)
    shifts = (2 * uniforms[:, 1:3] - 1) * pixels
    return move_pictures(images, angles, shifts), labels


# %% mystnb={"image": {"alt": "A row of eight small pictures: a handwritten digit, and the same digit turned and shifted a little in seven ways."}} tags=["shared", "figure"]
uniforms = np.random.default_rng(0).random((7, 8), np.float32)
same_digit = tensor(np.repeat(x_test[:1], 7, axis=0)), y_test[:7]
turned, _ = augment(tensor(uniforms), *same_digit)  # seven versions of one digit
row = np.concatenate([x_test[:1], as_numpy(turned)])[..., 0]
title = ["a digit, and seven versions of it"]
plots.pictures((255 * row[None]).round().astype(np.uint8), titles=title)

# %% [markdown] tags=["shared"]
# To measure what it teaches, we shift each test picture by one pixel, an eighth of its
# width. A shift up or down also pushes a row of ink off the picture.
#
# The augmented model gets three times the epochs; its best one is chosen on validation
# pictures shifted in the same way.


# %% tags=["shared"]
def moved(images, labels):
    """Each picture shifted by one pixel up, down, left and right."""
    padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
    corners = (2, 1), (0, 1), (1, 2), (1, 0)  # row and column of an 8 × 8 window
    shifted = [padded[:, y : y + 8, x : x + 8] for y, x in corners]
    return np.concatenate(shifted), np.tile(labels, 4)


longer = Settings(n_train=len(train[0]), epochs=60, **usual)
options = {"validation": moved(*validation), "best": "accuracy", "augment": augment}
augmented = new_model()
fit(augmented, cross_entropy, train, longer, **options)
on_test["ViT, augmented"] = accuracy(augmented, *test)
x_moved, y_moved = moved(*test)
on_moved = {
    "logistic regression": regression.score(flat(x_moved), y_moved),
    "SVM": svm.score(flat(x_moved), y_moved),
    "ViT, class token": accuracy(vit, x_moved, y_moved),
    "ViT, augmented": accuracy(augmented, x_moved, y_moved),
}

# %% tags=["shared", "say"]
means = {name: f"{np.mean(x):.1%}" for name, x in seeds["shifted by one pixel"].items()}
pairs = zip(on_moved, on_test.values(), on_moved.values(), strict=True)
rows = [[name, f"{a:.1%}", f"{b:.1%}", means[name]] for name, a, b in pairs]
say(table(["model", "test digits", "shifted", "shifted, five other runs"], *rows))

# %% [markdown] tags=["shared"]
# Shifts cost all models accuracy. With augmentation, the ViT finds most of the shifted
# digits. A ViT that trains as long without it does not, and convolutions stay ahead (an
# extra has both).

# %% tags=["shared", "check"]
# Checked: all lose accuracy by a shift; augmentation teaches it; convolutions are ahead
assert (x_test[:, [0, -1]].sum(axis=(2, 3)) > 0).all()  # ink that a shift cuts off
assert all(on_moved[name] < on_test[name] - 0.1 for name in [*on_test][:3])
assert on_moved["ViT, augmented"] > on_moved["ViT, class token"] + 0.2
of_seeds = {name: np.array(x) for name, x in seeds["shifted by one pixel"].items()}
assert (of_seeds["ViT, augmented"] > of_seeds["ViT, as long"]).all()
assert (of_seeds["convolutions"] > of_seeds["ViT, class token"]).all()
assert (of_seeds["convolutions, augmented"] > of_seeds["ViT, augmented"]).all()

# %% [markdown] tags=["shared"]
# **Exercise 4, one change of code.** Is augmentation only for neural nets? Train an SVM
# on the training pictures *and* `moved(*train)`.

# %% tags=["shared", "answer"]
x_more, y_more = moved(*train)
more = np.concatenate([flat(train[0]), flat(x_more)])
second = SVC().fit(more, np.concatenate([train[1], y_more]))
svm_moved = second.score(flat(x_moved), y_moved)
assert svm_moved > on_moved["SVM"] + 0.2
say(
    f"It finds **{svm_moved:.1%}** of the shifted digits instead of "
    f"{on_moved['SVM']:.1%}, and {second.score(flat(x_test), y_test):.1%} of the "
    "others: augmentation changes the data, so it can help any model. (And the lost "
    "ink was not the reason.) But this SVM has seen exactly the four shifts of the "
    "test; rotations would need more copies still."
)

# %% [markdown] tags=["shared"]
# ## Attention shows where the class token looks, not why
#
# The weights that the class token gives to the patches make a map, here the mean over
# the heads of the last block. Are its largest weights the reason for the class? We
# erase the four patches with the most attention, of sixteen, and see how far the
# probability of the chosen class falls.

# %% tags=["shared"]
_, maps = attention_maps(augmented.encoder, augmented.tokens(tensor(x_test)))
looks = as_numpy(maps)[-1].mean(axis=1)[:, 0, 1:]  # b n: from the token to the patches


def probabilities(model, images):
    """Of every class, for each picture: ``b y x i -> b c``."""
    z = as_numpy(predict(model, images))
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return z / z.sum(axis=1, keepdims=True)


def erased(images, scores):
    """Pictures without the four patches that have the highest scores ``b n``."""
    keep = np.ones(scores.shape, bool)
    np.put_along_axis(keep, np.argsort(-scores, axis=1)[:, :4], False, axis=1)
    pixels = keep.reshape(-1, 4, 4).repeat(2, axis=1).repeat(2, axis=2)  # b y x
    return images * pixels[..., None]


# %% [markdown] tags=["shared"]
# For comparison we erase four at random, four at random with as much ink as the
# attended ones (the closest of 100 draws), and the four with the most ink.

# %% tags=["shared"]
p = probabilities(augmented, x_test)  # b c
guess, before = p.argmax(axis=1), p.max(axis=1)


def share_left(scores):
    """Share of the probability that is left without four patches: ``b``."""
    after = probabilities(augmented, erased(x_test, scores))
    return after[np.arange(len(guess)), guess] / before


ink = x_test.reshape(-1, 4, 2, 4, 2).sum(axis=(2, 4)).reshape(-1, 16)  # b n


def erased_ink(scores):
    """Ink of the four patches with the highest scores: ``… b n -> … b``."""
    first = np.argsort(-scores, axis=-1)[..., :4]
    return np.take_along_axis(np.broadcast_to(ink, scores.shape), first, -1).sum(-1)


# %% tags=["shared"]
rng = np.random.default_rng(0)
random, fair = [], []
for _ in range(5):
    draws = rng.random((100, *looks.shape))  # 100 b n
    best = np.abs(erased_ink(draws) - erased_ink(looks)).argmin(axis=0)  # b
    random.append(draws[0])
    fair.append(draws[best, np.arange(len(best))])
kinds = {"at random": random, "at random, as much ink": fair}
kinds |= {"most attention": [looks], "most ink": [ink]}
lost = {name: 1 - np.mean([*map(share_left, x)]) for name, x in kinds.items()}
ink_lost = {
    name: erased_ink(np.stack(x)).mean() / ink.sum(1).mean()
    for name, x in kinds.items()
}

# %% mystnb={"image": {"alt": "Five handwritten digits in three rows. Above, each digit with the class that the model chooses and its probability. In the middle, a map of four by four weights of the class token. Below, the digit without the four patches of the largest weights, and the probability of the same class."}} tags=["shared", "figure"]
without = erased(x_test, looks)[:5]
left = before * share_left(looks)
fig, axes = plots.panels_in_rows(15, 5, (6.4, 3.8), None, None)
for i, (first, second, third) in enumerate(axes.reshape(3, 5).T):
    first.imshow(x_test[i], cmap="Greys", vmin=0, vmax=1)
    scale = {"cmap": "Blues", "vmin": 0, "vmax": looks[:5].max()}
    weights = second.imshow(looks[i].reshape(4, 4), **scale)
    third.imshow(without[i], cmap="Greys", vmin=0, vmax=1)
    first.set_title(f"{guess[i]}: {before[i]:.0%}")
    third.set_xlabel(f"{guess[i]}: {left[i]:.0%}")
for ax, name in zip(axes[::5], ("picture", "weights", "erased"), strict=True):
    ax.set_ylabel(name)
for ax in axes:
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
fig.colorbar(weights, ax=[*axes[5:10]], label="weight")
fig

# %% tags=["shared", "say"]
rows = [[name, f"{ink_lost[name]:.0%}", f"{share:.0%}"] for name, share in lost.items()]
say(table(["four patches erased", "of the ink", "probability falls by"], *rows))
beyond = 100 * (lost["most attention"] - lost["at random, as much ink"])
say(f"Attention, beyond as much ink at random: {beyond:+.0f} points.")

# %% [markdown] tags=["shared"]
# Even random patches cost something: ink is gone, in a new way. The attended ones cost
# more, but with them more ink goes. Only the difference from random ones with as much
# ink can be due to the map. The most ink costs more still, and needs no model. One
# reason: by the last block, a patch's vector also contains the others ([Abnar & Zuidema
# 2020](https://arxiv.org/abs/2005.00928)).

# %% tags=["shared", "check"]
# Checked: attended patches cost more than random ones of less ink; the most ink most
is_erased = erased(1 + x_test, looks) == 0
assert (is_erased.sum(axis=(1, 2, 3)) == 4 * 2**2).all()
assert lost["most ink"] > lost["at random"] + 0.1
at_random, attended, inky, _ = map(np.array, seeds["probability lost"].values())
assert (at_random < attended).all() and (attended < inky).all()

# %% [markdown] tags=["shared"]
# ## A trained trunk learns from a few photos
#
# The class above has learned CIFAR-10 once, in PyTorch: 45,000 photos of ten classes,
# 32 × 32 pixels in colour (an extra). What if you have only five photos of each class?
#
# A network without its output layer, its **trunk** or *backbone*, can be trained on
# classes with many pictures and reused for others with few. A **linear probe** keeps
# the trunk **frozen**, and fits only a new output layer. We try one on 64 features of
# each photo, found by a convolutional net that was trained on ImageNet,
# EfficientNet-Lite0 ([Tan & Le 2019](https://arxiv.org/abs/1905.11946)).

# %% tags=["shared"]
photos = np.load("helpers/data/photos.npz")
x, y = photos["train"].astype(np.float32), photos["train_labels"]  # n i, n
run, shares = recorded("cifar10")[-1], {}
for k in (5, 50, 550):
    rows = np.concatenate([np.flatnonzero(y == c)[:k] for c in range(10)])
    probe = LogisticRegression(C=0.01, max_iter=1000)  # small C: small weights
    probe.fit(x[rows], y[rows])
    share = probe.score(photos["test"], photos["test_labels"])
    shares[f"linear probe, {k} photos a class"] = share
shares["our ViT from scratch, 4,500 a class"] = run["test_accuracy"]
{name: f"{share:.1%}" for name, share in shares.items()}

# %% [markdown] tags=["shared"]
# The probe takes seconds. With all its photos it is ahead of the ViT, which has seen
# eight times as many (but with more updates a ViT gets ahead, in an extra); with five
# of each class, far ahead of guessing, a tenth. (They are tested on 1,000 photos, the
# ViT on 10,000.)

# %% tags=["shared", "check"]
# Checked: the probe beats the ViT from scratch, and learns from five photos of a class
five, fifty, most, from_scratch = shares.values()
assert most > from_scratch + 0.05 and 0.4 < five < fifty < most

# %% [markdown] tags=["shared"]
# ## A published trunk can learn your photos
#
# Now yours: this program takes the ViT-B/16 of torchvision, trained on ImageNet, and
# fits a probe on its class tokens. Beside this notebook, put a folder `photos` with a
# folder for each class, such as `photos/owl/1.jpg`, and run it. It needs nothing of
# this book. (Nothing of the trunk is trained, so it stays in PyTorch in both twins.)


# %% tags=["shared"]
def photo_features(folder):
    """Class tokens of photos, ``n 768``, and names of their classes: a folder each."""
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.models import ViT_B_16_Weights, vit_b_16

    weights = ViT_B_16_Weights.DEFAULT  # a file of 330 MB, downloaded once
    place = "cuda" if torch.cuda.is_available() else "cpu"
    net = vit_b_16(weights=weights).eval().to(place)
    net.heads = torch.nn.Identity()  # no output layer
    photos = ImageFolder(folder, weights.transforms())  # 224 × 224, as in its training
    with torch.inference_mode():
        batches = DataLoader(photos, batch_size=32)
        found = [(net(x.to(place)).cpu(), y) for x, y in batches]
    x, y = [torch.cat(parts).numpy() for parts in zip(*found, strict=True)]
    return x, np.array(photos.classes)[y]


# %% tags=["shared"]
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

if Path("photos").is_dir():
    x, y = photo_features("photos")
    options = {"test_size": 0.2, "stratify": y, "random_state": 0}
    x_fit, x_held, y_fit, y_held = train_test_split(x, y, **options)
    probe = LogisticRegression(max_iter=1000).fit(x_fit, y_fit)
    print(f"{probe.score(x_held, y_held):.1%} of {len(y_held)} photos held out")
    # new photos, in new/any/: probe.predict(photo_features("new")[0])

# %% [markdown] tags=["shared"]
# * Take at least five photos a class; fit a regression on the pixels, too. All photos
#   of one scene or one person belong on the same side of the split.
# * With hundreds of photos a class, or photos unlike those of ImageNet, **fine-tuning**
#   may be better. It trains all weights, beginning with those of the trunk: work for a
#   GPU, in the first extra.

# %% [markdown] tags=["shared"]
# ## Extra: Fine-tune all weights on your photos
#
# To try first, with AdamW, and a rate that rises for a tenth of the updates and then
# falls as half a cosine:
#
# | | fine-tune a published trunk | train the class above on small pictures |
# |---|---|---|
# | learning rate | 3e-5, then 1e-5 and 1e-4 | 1e-3, then 3e-4 and 3e-3 |
# | batch; weight decay | 32; 0.05 | 64; 0.05 |
# | epochs | 5 to 20 | 50 to 300 |
# | patch and sizes | its own | 64 patches, 4 blocks, 4 heads, $m = 96$, $f = 2m$ |
#
# Our class is the published architecture, so published weights fit it, under other
# names. Two layouts differ: a convolution's kernel is `m i y x`, and PyTorch's matrices
# are `out in`, those in our files `in out`. For torchvision:

# %% tags=["shared"]
TORCHVISION = {
    "class_token": "token",
    "conv_proj": "embed",
    "heads.head": "output",
    "encoder.pos_embedding": "positions.table",
    "encoder.ln.": "encoder.norm.",
    "layers.encoder_layer_": "blocks.",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "mlp.0": "ffn.linear1",
    "mlp.3": "ffn.linear2",
    "self_attention.in_proj_": "attention.qkv.",
    "self_attention": "attention",
    "out_proj": "out",
}


# %% tags=["shared"]
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
# In PyTorch one may as well take torchvision's own model. The rest of this section
# does, with a training loop of its own, and needs nothing of this book.


# %% tags=["shared"]
def photo_batches(folder, batch_size=32):
    """Batches to train on, batches held out, and classes: a folder for each."""
    from torch.utils.data import DataLoader, Subset
    from torchvision.datasets import ImageFolder
    from torchvision.models import ViT_B_16_Weights
    from torchvision.transforms import v2

    prepare = ViT_B_16_Weights.DEFAULT.transforms()  # as in its training: 224 × 224
    photos = ImageFolder(folder, prepare)
    mirrored = ImageFolder(folder, v2.Compose([v2.RandomHorizontalFlip(), prepare]))
    rows = np.random.default_rng(0).permutation(len(photos)).tolist()
    n = len(rows) // 5  # held out
    held_out = DataLoader(Subset(photos, rows[:n]), batch_size)
    batches = DataLoader(Subset(mirrored, rows[n:]), batch_size, shuffle=True)
    return batches, held_out, photos.classes


# %% tags=["torch"]
def published(n_classes):
    """Torchvision's ViT-B/16 with a new output layer."""
    from torchvision.models import ViT_B_16_Weights, vit_b_16

    weights = ViT_B_16_Weights.DEFAULT  # a file of 330 MB, downloaded once
    net = vit_b_16(weights=weights)
    net.heads = nn.Linear(768, n_classes)
    return net.to(device)


# %% tags=["torch"]
def outputs(net, batches):
    """Outputs of a net for batches of photos, ``n c``, and the labels, ``n``."""
    net.eval()
    with torch.inference_mode():
        pairs = [(net(x.to(device)).cpu().numpy(), y.numpy()) for x, y in batches]
    return [np.concatenate(parts) for parts in zip(*pairs, strict=True)]


def features(net, batches):
    """What the trunk finds in photos, its class token ``n m``; and the labels."""
    head, net.heads = net.heads, nn.Identity()  # no output layer
    found = outputs(net, batches)
    net.heads = head
    return found


# %% tags=["torch"]
def fine_tune(net, batches, epochs=5, rate=3e-5):
    """Train all weights of a net, in place: the mean loss of each epoch."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=rate, weight_decay=0.05)
    total = epochs * len(batches)  # updates
    one_cycle = torch.optim.lr_scheduler.OneCycleLR  # the rate rises, and falls
    schedule = one_cycle(optimizer, rate, total, pct_start=0.1, cycle_momentum=False)
    losses = []
    net.train()
    for _ in range(epochs):
        for x, y in batches:
            loss = nn.functional.cross_entropy(net(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    return np.array(losses).reshape(epochs, -1).mean(axis=1)


# %% tags=["torch"]
if Path("photos").is_dir() and device == "cuda":  # hours on a CPU
    batches, held_out, classes = photo_batches("photos")
    net = published(len(classes))
    probe = LogisticRegression(max_iter=1000).fit(*features(net, batches))
    print(f"linear probe: {probe.score(*features(net, held_out)):.1%}")
    print("losses:", fine_tune(net, batches))
    logits, labels = outputs(net, held_out)
    print(f"fine-tuned: {(logits.argmax(axis=1) == labels).mean():.1%}")
    torch.save(net.state_dict(), "vit_of_my_photos.pt")

# %% [markdown] tags=["shared"]
# ## Extra: From scratch, photos need far more updates than digits
#
# Of 50,000 photos, 5,000 are kept for validation. [Program and
# record](../book/how-this-was-built.md); the settings:

# %% tags=["shared"]
print(f"{run['n_parameters']:,} parameters, {run['cpu_seconds'] / 60:.0f} minutes")
{"augmentation": run["augmentation"], **run["sizes"], **run["settings"]}

# %% mystnb={"image": {"alt": "Two curves over the updates of the recorded training on CIFAR-10. Left, the loss falls fast at first, then ever more slowly. Right, the accuracy on the validation photos rises in the same way."}} tags=["shared", "figure"]
updates = run["every"] * np.arange(1, 1 + len(run["loss"])) / 1000
steps, shares = np.array(run["validation_accuracy"]).T
curves = {"loss in training": {"ViT on CIFAR-10": (updates, np.array(run["loss"]))}}
curves["validation accuracy"] = {"ViT on CIFAR-10": (steps / 1000, shares)}
plots.curves(curves, x="thousands of updates")

# %% [markdown] tags=["shared"]
# The first test photo of each class, the class that the ViT chooses, and the map of its
# class token, each on a scale of its own.

# %% mystnb={"image": {"alt": "Ten small photos, one of each class of CIFAR-10, with the class that the model chooses and its probability. Below each, a map of eight by eight weights of the class token."}} tags=["shared", "figure"]
from base64 import b64decode
from io import BytesIO

from PIL import Image

fig, axes = plots.panels_in_rows(20, 5, (6.4, 6.6), None, None)
upper = [*axes[:5], *axes[10:15]]  # photos in rows 0 and 2, below each its map
for c, (ax, found) in enumerate(zip(upper, run["examples"], strict=True)):
    below = axes[[*axes].index(ax) + 5]
    p, weights = np.array(found["probabilities"]), np.array(found["map"])
    ax.imshow(Image.open(BytesIO(b64decode(found["photo"]))))
    ax.set_title(run["classes"][c], size=10)
    ax.set_xlabel(f"{run['classes'][p.argmax()]}: {p.max():.0%}", size=9)
    below.imshow(weights.reshape(8, 8), cmap="Blues", vmin=0)
for ax in axes:
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
fig

# %% [markdown] tags=["shared"]
# Small convolutional nets pass [90 %](https://arxiv.org/abs/1512.03385) on CIFAR-10 (He
# et al. 2016, table 6). With 300 million photos before, a ViT-L/16 reaches
# [87.76 %](https://arxiv.org/abs/2010.11929) on ImageNet, a ViT-H/14 88.55 %, and
# 99.50 % on CIFAR-10 (Dosovitskiy et al., table 2). One of [this
# book's sources](../book/references.md) publishes 79 % after 30,000 updates of a ViT.

# %% [markdown] tags=["shared"]
# ## Extra: A trunk of digits and four pictures of a new class
#
# Does a trunk help with few pictures? We train one on the digits 0 to 7, and then show
# it four pictures each of 8 and 9.


# %% tags=["shared"]
def only(part, classes):
    """Pictures of consecutive classes, with labels from 0 on."""
    images, labels = part
    chosen = np.isin(labels, classes)
    return images[chosen], labels[chosen] - min(classes)


known = only(train, range(8))
shorter = Settings(n_train=len(known[0]), epochs=20, **usual)
trunk = new_model()  # of its ten outputs, the last two never come up
history_of_trunk = fit(trunk, cross_entropy, known, shorter, augment=augment)


# %% tags=["shared"]
def with_trunk(seed):
    """A new model of two classes with the weights of the trunk."""
    model = new_model(seed, n_outputs=2)
    arrays = to_arrays(model)
    for name, x in to_arrays(trunk).items():
        if "output" not in name:
            arrays[name] = x
    from_arrays(model, arrays)
    return model


parts = [only(part, [8, 9]) for part in (train, validation, test)]
new_images = np.concatenate([images for images, _ in parts])
new_labels = np.concatenate([labels for _, labels in parts])
held_out = new_images[100:], new_labels[100:]  # the first hundred: to learn from


def few(k, seed):
    """Rows of ``k`` pictures of each new class: ``k 2``."""
    order = np.random.default_rng(seed).permutation(100)
    return np.stack([order[new_labels[order] == c][:k] for c in (0, 1)], axis=1)


# %% tags=["shared"]
encoded, _ = attention_maps(trunk.encoder, trunk.tokens(tensor(new_images)))
of_trunk = as_numpy(encoded)[:, 0]  # n m


def probed(features, rows):
    """Accuracy on the rest of a regression that has learned from a few rows."""
    probe = LogisticRegression(max_iter=1000)
    probe.fit(features[rows.ravel()], new_labels[rows.ravel()])
    return probe.score(features[100:], new_labels[100:])


def learned(model, rows, learning_rate, seed):
    """Accuracy on the rest after 40 updates with a few rows, ``k 2``."""

    def in_turn(epoch):
        return np.resize(rows, (40, 16))  # the same pictures again and again

    rates = {"learning_rate": learning_rate, "warmup": 4, "seed": seed}
    task = Settings(n_train=40 * 16, batch_size=16, epochs=1, **rates)
    fit(model, cross_entropy, (new_images, new_labels), task, batches=in_turn)
    return accuracy(model, *held_out)


# %% tags=["shared"]
found = {"regression on pixels": [], "linear probe": []}
found |= {"fine-tuning": [], "from scratch": []}
for seed in range(3):
    rows = few(4, seed)
    tuned, scratch = with_trunk(seed), new_model(seed, n_outputs=2)
    found["regression on pixels"].append(probed(flat(new_images), rows))
    found["linear probe"].append(probed(of_trunk, rows))
    found["fine-tuning"].append(learned(tuned, rows, 1e-3, seed))
    found["from scratch"].append(learned(scratch, rows, 3e-3, seed))
{name: [f"{share:.1%}" for share in shares] for name, shares in found.items()}

# %% [markdown] tags=["shared"]
# These are three draws of four pictures each; guessing finds half. Fine-tuning, at a
# third of the rate so as to keep what the trunk has learned, is better than training
# from scratch on average, and in each of five recorded runs: that is what the trunk
# brings. But for two digits the regression on 64 pixels is a strong rival.

# %% tags=["shared", "check"]
# Checked: fine-tuning is better than training from scratch with each recorded seed
of_seeds = {name: np.array(x) for name, x in seeds["two new classes"].items()}
for k in (4, 16):
    scratch = of_seeds[f"from scratch, {k} of each"]
    assert (of_seeds[f"fine-tuning, {k} of each"] > scratch).all()
assert np.mean(found["fine-tuning"]) > 0.6 and few(40, 0).max() < 100  # not the rest

# %% [markdown] tags=["shared"]
# ## Extra: Train this class on photos of yours
#
# From scratch. Set the environment variable `PHOTOS` to a folder with a folder of
# pictures for each class, or to `cifar10`, which is downloaded. The middle square of a
# photo is scaled to 32 × 32 pixels: cut large pictures into tiles first. Without
# folders `train` and `test`, a fifth is kept for the test.

# %% tags=["shared"]
import os
import subprocess
import sys
from pathlib import Path


def load_photos(source):
    """Photos in three parts, ``n y x i`` and ``n``, and the names of the classes."""
    tool = [sys.executable, "../tools/data.py", "--images-only", source]
    subprocess.run(tool, check=True)
    name = Path(source).expanduser().resolve().name
    found = np.load(Path(os.environ.get("DATA_FOLDER") or "data", f"{name}.npz"))
    train, test = [
        (found[f"{part}_images"] / np.float32(255), found[f"{part}_labels"])
        for part in ("train", "test")
    ]
    return *divide(train, 0.1), test, found["classes"].tolist()


# %% tags=["torch"]
def mirror(uniforms, images, labels):
    """Half of the photos mirrored, to augment them: ``b y x i -> b y x i``."""
    mirrored = uniforms[:, 0, None, None, None] < 0.5
    return torch.where(mirrored, images.flip(2), images), labels


# %% tags=["shared"]
larger = {"image_size": 32, "n_channels": 3, "patch": 4, "dropout": 0.1}
larger |= {"n_blocks": 4, "m": 96, "f": 192}


def learn_photos(train, validation, classes, updates=640):
    """A ViT that is trained on photos, for about so many updates."""
    n = len(train[0])
    batch_size = min(64, 1 + n // 8)
    plan = Settings(
        n_train=n,
        batch_size=batch_size,
        epochs=min(100, 1 + updates // (n // batch_size)),
        learning_rate=1e-3,
        warmup=min(50, updates // 10),
    )
    model = new_model(n_outputs=len(classes), **larger)
    options = {"validation": validation, "best": "accuracy", "augment": mirror}
    fit(model, cross_entropy, train, plan, **options)
    return model


# %% tags=["shared"]
source = os.environ.get("PHOTOS", "digits")  # of photos of yours
if source != "digits":
    *parts, own_test, classes = load_photos(source)
    updates = 640 if device == "cpu" else 30_000
    own_vit = learn_photos(*parts, classes, updates)
    share = accuracy(own_vit, *own_test)
    print(f"{share:.1%} of {len(own_test[0])} photos; guessing: {1 / len(classes):.0%}")

# %% [markdown] tags=["shared"]
# For one photo, 32 × 32 × 3 numbers from 0 to 1, take
# `probabilities(own_vit, photo[None])`.

# %% [markdown] tags=["shared"]
# ## Extra: Without positions, a picture is a bag of patches
#
# How much of a digit is left without positions, and how much does a model rely on them?
# We shuffle the patches of each test picture. Models with other positions were trained
# once, as the one above is, with five seeds.


# %% tags=["shared"]
def shuffled(images, p=2, seed=0):
    """Pictures with their patches in another order, each in its own: ``n y x i``."""
    n, side, _, i = images.shape
    cut = images.reshape(n, side // p, p, side // p, p, i).swapaxes(2, 3)
    patches = cut.reshape(n, -1, p * p * i)
    order = np.argsort(np.random.default_rng(seed).random(patches.shape[:2]), axis=1)
    mixed = np.take_along_axis(patches, order[..., None], axis=1)
    return mixed.reshape(cut.shape).swapaxes(2, 3).reshape(images.shape)


x_shuffled = shuffled(x_test)
vit_shuffled = accuracy(vit, x_shuffled, y_test)

# %% tags=["shared", "say"]
bag = seeds["positions"] | {"learned": seeds["test digits"]["ViT, class token"]}
rows = [["here", f"{on_test['ViT, class token']:.1%}", f"{vit_shuffled:.1%}"]]
for kind in ("learned", "sinusoidal", "none"):
    both = bag[kind], bag.get(f"{kind}, patches shuffled", bag["none"])
    rows.append([f"{kind}, five seeds", *(f"{np.mean(x):.1%}" for x in both)])
say(table(["positions", "test digits", "patches shuffled"], *rows))

# %% [markdown] tags=["shared"]
# Without positions, shuffling changes nothing, and a ViT still finds most digits: the
# strokes alone say much, even without their places. Models with positions rely on them,
# and lose most of their accuracy.

# %% [markdown] tags=["shared"]
# Learned positions begin as random numbers. Does the ViT find out which patches are
# neighbours? Each small map below belongs to the patch at its place, and shows the
# cosine between its position vector and those of all 16 patches (blue: high), for the
# augmented ViT.

# %% tags=["shared"]
tables = {
    "before training": to_arrays(new_model())["positions.table"][1:],  # no token
    "learned": to_arrays(augmented)["positions.table"][1:],
}


def cosines(vectors):
    """Cosine of each vector with all: ``n m -> n n``."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit @ unit.T


at = np.stack(np.divmod(np.arange(16), 4), axis=1)  # n 2: row and column
distance = np.abs(at[:, None] - at).sum(axis=-1)  # n n
near = {name: cosines(x)[distance == 1].mean() for name, x in tables.items()}
far = {name: cosines(x)[distance > 1].mean() for name, x in tables.items()}

# %% mystnb={"image": {"alt": "Two grids of four by four small maps. Before training, each map is dark at its own patch only. Learned: around its own patch, each map has further dark cells, mostly neighbours."}} tags=["shared", "figure"]
fig, axes = plots.panels_in_rows(2, None, None, (0.8, 0.5), (2.6, 2.6))
for ax, (name, vectors) in zip(axes, tables.items(), strict=True):
    maps = np.full((4, 5, 4, 5), np.nan)  # the last are gaps
    maps[:, :-1, :, :-1] = cosines(vectors).reshape(4, 4, 4, 4).swapaxes(1, 2)
    shown = maps.reshape(20, 20)[:-1, :-1]
    picture = ax.imshow(shown, vmin=-1, vmax=1, cmap="RdBu", interpolation="none")
    places = 5 * np.arange(4) + 1.5
    ax.set_xticks(places, range(4))
    ax.set_yticks(places, range(4))
    ax.set(title=name, xlabel="column of the patch")
    ax.grid(False)
    ax.spines[:].set_visible(False)
axes[0].set_ylabel("row of the patch")
fig.colorbar(picture, ax=[*axes], label="cosine similarity", ticks=[-1, 0, 1])
fig

# %% [markdown] tags=["shared"]
# Learned positions of patches that share a side have become a little more alike than
# others.

# %% tags=["shared", "check"]
# Checked: without positions, order has no effect; learned ones of neighbours are alike
bag_vit = new_model()
no_positions = {"positions.table": np.zeros((17, 48))}
from_arrays(bag_vit, to_arrays(bag_vit) | no_positions)
both = [as_numpy(predict(bag_vit, x)) for x in (x_test, x_shuffled)]
np.testing.assert_allclose(*both, atol=1e-5)
assert vit_shuffled < 0.5 and near["learned"] - far["learned"] > 0.15
assert max(map(abs, (near["before training"], far["before training"]))) < 0.15

# %% [markdown] tags=["shared"]
# ## Extra: A convolutional net of the same size
#
# Three convolutions, with about as many parameters as the ViT.

# %% [markdown] tags=["torch"]
# `nn.Conv2d` wants the channels before the pixels. To train it, give `fit` a
# `ConvNet(1, 10).to(device)` in place of the ViT.


# %% tags=["torch"]
class ConvNet(nn.Module):
    """Three convolutions, then the mean over all places: ``b y x i -> b c``."""

    def __init__(self, n_channels, n_outputs):
        super().__init__()
        pairs = (n_channels, 24), (24, 48), (48, 64)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)
        self.head = dense(64, n_outputs)

    def forward(self, images):
        x = images.permute(0, 3, 1, 2)  # b i y x
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            x = nn.functional.max_pool2d(x, 2) if number == 1 else x
        return self.head(x.mean(dim=(2, 3)))  # b c


# %% [markdown] tags=["shared"]
# Five runs of each are recorded. *As long*: as many epochs as with augmentation, and
# the same shifted validation pictures. *Mean*: mean pooling, without a class token.

# %% tags=["shared", "say"]
names = ["ViT, class token", "ViT, mean", "ViT, as long", "ViT, augmented"]
names += ["convolutions", "convolutions, augmented"]
kinds = seeds["test digits"], seeds["shifted by one pixel"]
rows = [[name, *(f"{np.mean(kind[name]):.1%}" for kind in kinds)] for name in names]
say(table(["mean of five runs", "test digits", "shifted"], *rows))

# %% [markdown] tags=["shared"]
# ## Extra: Freeze the trunk, take the weights along

# %% [markdown] tags=["torch"]
# To train only a new output layer, freeze the rest: such parameters get no gradient,
# and the optimizer skips them.


# %% tags=["torch"]
def freeze(model):
    """Train the output layer alone: no other parameter gets a gradient."""
    model.requires_grad_(False)
    model.output.requires_grad_(True)


# %% [markdown] tags=["shared"]
# Our augmented ViT, which reads digits that you draw [in your
# browser](../book/playground.md), as a file:

# %% tags=["shared"]
download_link(augmented, f"vision_{framework}.safetensors")

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Two functions: patches, and the vectors that the encoder gets. `check` tries each on
# random arrays, and says what is wrong. Pictures need not be square.


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
# <details><summary>A larger fall than for as many others with as much ink.</summary>
#
# **Right.** Others at random with as much ink, or those with the most ink, for which
# one needs no model. Only the difference can belong to the map.
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
# * For photos, take a trained trunk: fit a probe on it first, then fine-tune it.

# %% [markdown] tags=["torch"]
# Next comes [a model that writes, in PyTorch](decoder_torch.ipynb).
