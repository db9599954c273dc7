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

# %% [markdown] tags=["shared"]
# $H \times H$ pixels in patches of $p \times p$ give $N = (H/p)^2$ patches, each a
# vector $x_n$ of $p \cdot p \cdot i$ numbers; $i$ is the number of channels, three in a
# colour photo. For a photo of 224 × 224, $p = 16$ gives 196 patches, and a map of
# $196^2$ weights; halving $p$ makes four times as many patches, and a map sixteen times
# as large. Our data are scikit-learn's grey digits: $H = 8$, and $p = 2$ gives 16
# patches of 4 numbers.

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
# A dense layer then turns each patch into a vector of the model, $z_n = x_n W + b$.
# Since all patches get the same layer, cut and layer together are a **convolution**:
# $m$ *kernels* of $p \times p$ pixels, moved in steps (*strides*) of $p$.

# %% [markdown] tags=["shared"]
# **Exercise 1, by hand.** A photo of 32 × 32 pixels with three channels is cut with
# $p = 4$ for a model of size $m = 96$. How many patches, numbers in each, and weights
# in the dense layer `embed` are there? Which weights of a trained model no
# longer fit photos of 64 × 64?

# %% tags=["shared", "answer"]
n, size = (32 // 4) ** 2, 4 * 4 * 3
say(
    f"There are $(32/4)^2 = {n}$ patches of $4 \\cdot 4 \\cdot 3 = {size}$ numbers, "
    f"and `embed` has $48 \\cdot 96 = {size * 96:,}$ weights. For photos of 64 × 64 "
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
# positions. Without positions, a picture is a bag of patches (see the extra).


# %% tags=["torch"]
class VisionTransformer(nn.Module):
    """One output vector for each picture: ``b y x i -> b c``."""

    def __init__(
        self, image_size, n_channels, m, n_outputs, *, patch, dropout=0.0, **sizes
    ):
        super().__init__()
        self.shape, self.patch = (image_size, image_size, n_channels), patch
        self.embed = dense(patch * patch * n_channels, m)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, m))
        self.positions = LearnedPositions(m, 1 + (image_size // patch) ** 2)
        self.dropout = nn.Dropout(dropout)
        options = {"dropout": dropout, "activation": "gelu", "norm_first": True}
        self.encoder = Encoder(m=m, **sizes, **options)
        self.output = dense(m, n_outputs)

    def forward(self, images, mask=None, *, return_maps=False):
        if images.shape[1:] != self.shape:
            raise ValueError(f"expected b {self.shape}, got {tuple(images.shape)}")
        x = cut_patches(images, self.patch).to(self.embed.weight.dtype)
        x = self.embed(x)  # b n m
        x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)  # b s m
        x = self.dropout(self.positions(x))
        encoded = self.encoder(x, mask, return_maps=return_maps)
        x, maps = encoded if return_maps else (encoded, None)
        x = self.output(x[:, 0])  # b c
        return (x, maps) if return_maps else x


# %% tags=["shared"]
sizes = {"image_size": 8, "n_channels": 1, "m": 48, "n_outputs": 10, "patch": 2}
sizes |= {"n_blocks": 2, "n_heads": 4, "f": 96}


# %% tags=["torch"]
def new_model(seed=42, **changes):
    """An untrained ViT of these sizes, or of others."""
    torch.manual_seed(seed)
    return VisionTransformer(**sizes | changes).to(device)


# %% tags=["shared"]
vit = new_model()
logits, maps = attention_maps(vit, tensor(x_test))  # no dropout: b c, l b h s s
tuple(logits.shape), tuple(maps.shape)  # s = 17: the token and 16 patches

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
# ## It learns digits, but a support vector machine beats it
#
# Of the digits, 1,293 are for training, 144 for validation and 360 for the test. `fit`,
# from the reverse chapter, keeps the weights with the best validation accuracy.

# %% tags=["shared"]
usual = {
    "batch_size": 64,
    "learning_rate": 3e-3,  # high for a Transformer, but this one is small
    "warmup": 50,  # updates
}
settings = Settings(n_train=len(train[0]), epochs=20, **usual)
history = fit(vit, cross_entropy, train, settings, validation=validation)
print(f"{count_parameters(vit):,} parameters, {settings.updates} updates")

# %% [markdown] tags=["shared"]
# Its rivals are logistic regression and a support vector machine (SVM), on the 64
# pixels as they are. A ViT with mean pooling and a convolutional net of the same size
# (see the extra) were trained beforehand: the last column is [a
# record](../book/how-this-was-built.md) of all, the mean over five other seeds.

# %% tags=["shared"]
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC


def accuracy(model, images, labels):
    """Share of pictures whose class a ViT, or a model of scikit-learn, finds."""
    if hasattr(model, "score"):
        return model.score(images.reshape(len(images), -1), labels)
    return evaluate(model, cross_entropy, (images, labels), batch_size=360)["accuracy"]


flat, y_train = train[0].reshape(-1, 64), train[1]
models = {
    "logistic regression": LogisticRegression(max_iter=1000).fit(flat, y_train),
    "SVM": SVC().fit(flat, y_train),
    "ViT, class token": vit,
}
on_test = {name: accuracy(model, *test) for name, model in models.items()}

# %% tags=["shared", "say"]
seeds = recorded(f"vision-seeds-{framework}")[-1]["figures"]  # of a model: five numbers
means = {name: f"{np.mean(x):.1%}" for name, x in seeds["test digits"].items()}
rows = [[name, f"{share:.1%}", means[name]] for name, share in on_test.items()]
rows += [[name, "–", means[name]] for name in ("ViT, mean", "convolutions")]
say(table(["model", "test digits", "mean of five seeds"], *rows))

# %% tags=["shared", "check"]
# Checked: the ViT learns far more than guessing; the SVM is better with each seed
of_epochs = history["loss"].reshape(settings.epochs, -1).mean(axis=1)
for loss in (of_epochs, history["validation_loss"]):
    assert loss[-1] < loss[0] / 2
assert on_test["ViT, class token"] > 0.85 and on_test["SVM"] > 0.95
of_seeds = {name: np.array(x) for name, x in seeds["test digits"].items()}
assert (of_seeds["SVM"] > of_seeds["ViT, class token"]).all()

# %% [markdown] tags=["shared"]
# The standard error of one such accuracy is about a point; still, the SVM is above the
# ViT with each of the five seeds.

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
def move_pictures(images, angles, shifts):
    """Turn pictures about their middle, then shift: ``b y x i -> b y x i``."""
    images = images.movedim(-1, 1)  # b i y x
    height, width = images.shape[2:]
    cos, sin, (down, right) = angles.cos(), angles.sin(), shifts.T
    # where an output comes from, in halves of the picture's sides, from its middle
    x_from = [cos, -sin * height / width, (sin * down - cos * right) * 2 / width]
    y_from = [sin * width / height, cos, -(cos * down + sin * right) * 2 / height]
    ways = torch.stack([torch.stack(way, dim=1) for way in (x_from, y_from)], dim=1)
    grid = nn.functional.affine_grid(ways, images.shape, align_corners=False)  # b y x 2
    moved = nn.functional.grid_sample(images, grid, align_corners=False)  # by four
    return moved.movedim(1, -1)


# %% tags=["torch"]
def augment(uniforms, images, labels, *, degrees=0, pixels=0, flip=False):
    """Pictures turned, shifted and mirrored by chance: ``b y x i -> b y x i``."""
    if flip:
        mirrored = (uniforms[:, 3] < 0.5)[:, None, None, None]
        images = torch.where(mirrored, images.flip(2), images)
    if degrees or pixels:
        angles = (2 * uniforms[:, 0] - 1) * (degrees * np.pi / 180)
        images = move_pictures(images, angles, (2 * uniforms[:, 1:3] - 1) * pixels)
    return images, labels


# %% tags=["shared"]
def turn_and_shift(uniforms, images, labels):
    """``augment`` for digits: up to twelve degrees, up to a pixel."""
    return augment(uniforms, images, labels, degrees=12, pixels=1)


# %% mystnb={"image": {"alt": "A row of eight small pictures: a handwritten digit, and the same digit turned and shifted a little in seven ways."}} tags=["shared", "figure"]
uniforms = np.random.default_rng(0).random((7, 8), np.float32)
same_digit = tensor(np.repeat(x_test[:1], 7, axis=0)), y_test[:7]
turned, _ = turn_and_shift(tensor(uniforms), *same_digit)  # seven versions of one digit
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
    padded = np.pad(images, [(0, 0), (1, 1), (1, 1), (0, 0)])
    corners = (2, 1), (0, 1), (1, 2), (1, 0)  # where the picture begins in the padded
    shifted = [padded[:, y : y + 8, x : x + 8] for y, x in corners]
    return np.concatenate(shifted), np.tile(labels, 4)


longer = Settings(n_train=len(train[0]), epochs=60, **usual)  # more pictures to learn
options = {"validation": moved(*validation), "augment": turn_and_shift}
augmented = new_model()
fit(augmented, cross_entropy, train, longer, **options)
models["ViT, augmented"] = augmented
on_test["ViT, augmented"] = accuracy(augmented, *test)
on_moved = {name: accuracy(model, *moved(*test)) for name, model in models.items()}

# %% tags=["shared", "say"]
means = {name: f"{np.mean(x):.1%}" for name, x in seeds["shifted by one pixel"].items()}
pairs = zip(on_moved, on_test.values(), on_moved.values(), strict=True)
rows = [[name, f"{a:.1%}", f"{b:.1%}", means[name]] for name, a, b in pairs]
others = "ViT, as long", "convolutions", "convolutions, augmented"
rows += [[name, "–", "–", means[name]] for name in others]
say(table(["model", "test digits", "shifted", "shifted, five seeds"], *rows))

# %% [markdown] tags=["shared"]
# Shifts cost all models accuracy, but with each seed the convolutions find more of the
# shifted digits than a ViT with the same training pictures. With augmentation, the ViT
# finds most of them. The same number of epochs without it (*as long*) does not do it.

# %% tags=["shared", "check"]
# Checked: all lose accuracy by a shift; augmentation teaches it; convolutions are ahead
assert (x_test[:, [0, -1]].sum(axis=(2, 3)) > 0).all()  # ink that a shift cuts off
assert all(on_moved[name] < on_test[name] - 0.1 for name in [*models][:3])
assert on_moved["ViT, augmented"] > on_moved["ViT, class token"] + 0.2
of_seeds = {name: np.array(x) for name, x in seeds["shifted by one pixel"].items()}
assert (of_seeds["convolutions"] > of_seeds["ViT, class token"]).all()
assert (of_seeds["ViT, augmented"] > of_seeds["ViT, as long"]).all()

# %% [markdown] tags=["shared"]
# **Exercise 2, one change of code.** Is augmentation only for neural nets? Train an SVM
# on the training pictures *and* `moved(*train)`.

# %% tags=["shared", "answer"]
x_more, y_more = moved(*train)
more = np.concatenate([flat, x_more.reshape(-1, 64)])
second = SVC().fit(more, np.concatenate([y_train, y_more]))
svm_moved = accuracy(second, *moved(*test))
assert svm_moved > on_moved["SVM"] + 0.2
say(
    f"It finds **{svm_moved:.1%}** of the shifted digits instead of "
    f"{on_moved['SVM']:.1%}, and {accuracy(second, *test):.1%} of the others: "
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

# %% tags=["shared"]
logits, maps = attention_maps(augmented, tensor(x_test))
guess = as_numpy(logits).argmax(axis=1)  # n
looks = as_numpy(maps)[-1].mean(axis=1)[:, 0, 1:]  # n s: from the token to the patches


def erased(images, scores, n=4):
    """Pictures without the ``n`` patches that have the highest scores ``b s``."""
    keep = np.ones(scores.shape, bool)
    np.put_along_axis(keep, np.argsort(-scores, axis=1)[:, :n], False, axis=1)
    pixels = keep.reshape(-1, 4, 4).repeat(2, axis=1).repeat(2, axis=2)  # b y x
    return images * pixels[..., None]


def chosen_probability(images):
    """Probability of the class chosen for the whole picture: ``n``."""
    z = as_numpy(attention_maps(augmented, tensor(images))[0])
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return z[np.arange(len(z)), guess] / z.sum(axis=1)


# %% [markdown] tags=["shared"]
# For comparison we erase four at random, the four with the most ink, and the four that
# cost the most when each is erased alone.


# %% tags=["shared"]
def share_lost(scores):
    """Mean share of the probability that goes with the four highest scores."""
    return 1 - (chosen_probability(erased(x_test, scores)) / before).mean()


before, rng = chosen_probability(x_test), np.random.default_rng(0)
one_patch = np.eye(16)[:, None].repeat(len(x_test), axis=1)  # s n s
after = [chosen_probability(erased(x_test, scores, n=1)) for scores in one_patch]
ink = x_test.reshape(-1, 4, 2, 4, 2).sum(axis=(2, 4)).reshape(-1, 16)  # n s
lost = {
    "at random": np.mean([share_lost(rng.random(looks.shape)) for _ in range(5)]),
    "most attention": share_lost(looks),
    "most ink": share_lost(ink),
    "largest loss when erased alone": share_lost(-np.stack(after, axis=1)),
}

# %% mystnb={"image": {"alt": "Five handwritten digits in three rows. Above, each digit with the class that the model chooses and its probability. In the middle, a map of four by four weights of the class token. Below, the digit without the four patches of the largest weights, and the probability of the same class."}} tags=["shared", "figure"]
without = erased(x_test, looks)[:5]
left = chosen_probability(erased(x_test, looks))
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
rows = [[name, f"{share:.0%}"] for name, share in lost.items()]
say(table(["four patches erased", "probability falls by"], *rows))

# %% [markdown] tags=["shared"]
# Even random patches cost something: ink is gone, and such pictures never came up in
# training. With five other seeds, those that the token attends to cost more, so the map
# says something. But those with the most ink, which need no model, cost more still, and
# most of all those found by erasing one at a time. (Without some ink, an 8 may *be* a
# 3.)

# %% tags=["shared", "check"]
# Checked: attention finds more than chance, ink more than attention, erasing the most
is_erased = erased(1 + x_test, looks) == 0
assert (is_erased.sum(axis=(1, 2, 3)) == 4 * 2**2).all()
assert lost["largest loss when erased alone"] > lost["at random"] + 0.1
at_random, attended, inky, best = map(np.array, seeds["probability lost"].values())
assert (at_random < attended).all() and (attended < inky).all() and (inky < best).all()

# %% [markdown] tags=["shared"]
# ## Fine-tuning a trained trunk learns new classes from few pictures
#
# A ViT without its output layer, its **trunk** or *backbone*, can be trained on classes
# with many pictures and reused for others with few. **Fine-tuning** trains everything,
# beginning with the weights of the trunk. A **linear probe** keeps the trunk **frozen**
# (see the extra on weights), and fits only a new output layer, here a logistic
# regression. We train a trunk on the digits 0 to 7, and then show it four pictures each
# of 8 and 9.


# %% tags=["shared"]
def only(part, classes):
    """Pictures of consecutive classes, with labels from 0 on."""
    images, labels = part
    chosen = np.isin(labels, classes)
    return images[chosen], labels[chosen] - min(classes)


known = only(train, range(8))
shorter = Settings(n_train=len(known[0]), epochs=20, **usual)
options = {"validation": only(validation, range(8)), "augment": turn_and_shift}
trunk = new_model(n_outputs=8)
history_of_trunk = fit(trunk, cross_entropy, known, shorter, **options)


# %% tags=["shared"]
def with_trunk(seed, n_outputs):
    """A new model with the weights of the trunk, all but the output layer."""
    model = new_model(seed, n_outputs=n_outputs)
    new, old = to_arrays(model), to_arrays(trunk)
    from_arrays(model, {k: (new if "output" in k else old)[k] for k in new})
    return model


new_classes = [only(part, [8, 9]) for part in (train, validation, test)]
images = np.concatenate([x for x, _ in new_classes])
labels = np.concatenate([y for _, y in new_classes])
rest = images[100:], labels[100:]  # the first hundred are there to learn from


def few(k, seed):
    """Rows of ``k`` pictures of each new class: ``k 2``."""
    order = np.random.default_rng(seed).permutation(100)
    return np.stack([order[labels[order] == c][:k] for c in (0, 1)], axis=1)


# %% [markdown] tags=["shared"]
# The probe gets what the trunk hands to its output layer: the outputs of a model whose
# output layer changes nothing.

# %% tags=["shared"]
bare = with_trunk(42, n_outputs=48)
same = {"output.weight": np.eye(48), "output.bias": np.zeros(48)}
from_arrays(bare, to_arrays(bare) | same)
seen = as_numpy(attention_maps(bare, tensor(images))[0])  # n m


def probed(rows):
    """Accuracy on the rest of a regression that has learned from a few rows."""
    probe = LogisticRegression(max_iter=1000)
    probe.fit(seen[rows.ravel()], labels[rows.ravel()])
    return probe.score(seen[100:], rest[1])


def learned(model, rows, learning_rate, seed):
    """Accuracy on the rest after 40 updates with a few rows, ``k 2``, in turn."""
    rates = {"learning_rate": learning_rate, "warmup": 4, "seed": seed}
    task = Settings(n_train=40 * 16, batch_size=16, epochs=1, **rates)
    in_turn = {"batches": lambda epoch: np.resize(rows, (40, 16))}  # 8 and 9
    fit(model, cross_entropy, (images, labels), task, **in_turn)
    return evaluate(model, cross_entropy, rest)["accuracy"]


# %% tags=["shared"]
found = {"linear probe": [], "fine-tuning": [], "from scratch": []}
for seed in range(5):
    rows = few(4, seed)
    tuned, scratch = with_trunk(seed, n_outputs=2), new_model(seed, n_outputs=2)
    found["linear probe"].append(probed(rows))
    found["fine-tuning"].append(learned(tuned, rows, 1e-3, seed))
    found["from scratch"].append(learned(scratch, rows, 3e-3, seed))

# %% tags=["shared", "say"]
rows = [[name, f"{np.mean(x):.1%} ± {np.std(x):.1%}"] for name, x in found.items()]
say(table(["", "accuracy with 4 pictures of each (guessing: 50%)"], *rows))

# %% [markdown] tags=["shared"]
# (Mean and standard deviation of five draws; the probe is fitted until it converges,
# the others get 40 updates.) With five other seeds, fine-tuning was always better than
# training from scratch, with 4 pictures of each and with 16. With 4, the probe was,
# too.

# %% tags=["shared", "check"]
# Checked: fine-tuning is better than training from scratch with each recorded seed
of_seeds = {name: np.array(x) for name, x in seeds["two new classes"].items()}
for k in (4, 16):
    scratch = of_seeds[f"from scratch, {k} of each"]
    assert (of_seeds[f"fine-tuning, {k} of each"] > scratch).all()
few_each = "linear probe, 4 of each", "from scratch, 4 of each"
assert np.greater(*(of_seeds[name] for name in few_each)).all()
assert np.mean(found["fine-tuning"]) > 0.6 and few(40, 0).max() < 100  # not the rest

# %% tags=["shared", "say"]
run = recorded("cifar10")[-1]
say(
    f"On CIFAR-10, a ViT of {run['n_parameters']:,} parameters got **"
    f"{run['test_accuracy']:.1%}** of the test, from scratch ([recorded](../book/"
    f"how-this-was-built.md): {run['seconds'] / 60:.0f} min, {run['about']['device']})."
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
# downloads CIFAR-10.) Any size, mode and depth that Pillow reads will do; 16 bits
# become 8 by their type, so dark pictures stay dark. What is left out is listed. The
# middle square of a photo is scaled to 32 × 32 pixels, so cut
# large pictures into tiles first. A fifth of each class is kept for the test. But all
# photos of one scene, one slide or one person must be on the same side: then make two
# folders, `train` and `test`, with the same classes.

# %% tags=["shared"]
import os
from pathlib import Path

from PIL import Image, ImageCms, ImageOps

Image.MAX_IMAGE_PIXELS = None  # else Pillow takes a large scan for an attack


# %% tags=["shared"]
def eight_bits(photo):
    """A photo that PIL has opened, upright; deeper ones are scaled by their type."""
    tags = getattr(photo, "tag_v2", {})  # of TIFF; others have 16 bits
    bits, signed = np.max(tags.get(258, 16)), np.max(tags.get(339, 1)) == 2
    upright = ImageOps.exif_transpose(photo)
    if upright.mode[0] not in "FI":
        return upright
    values = np.asarray(upright)
    if upright.mode == "F":
        if not (values.min() >= 0 and values.max() <= 1):
            got = f"{values.min():g} to {values.max():g}"
            raise ValueError(f"expected floats from 0 to 1, got {got}")
        values = (255 * values).round()
    else:
        values = values.view(np.uint32) if bits == 32 and not signed else values
        values = values >> (bits - 8 - signed)
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


# %% tags=["shared"]
def square(photo):
    """The middle square of a photo that PIL has opened: uint8 ``32 32 3``."""
    photo = eight_bits(photo)
    if photo.mode == "LAB":
        profiles = [ImageCms.createProfile(name) for name in ("LAB", "sRGB")]
        photo = ImageCms.profileToProfile(photo, *profiles, outputMode="RGB")
    if photo.has_transparency_data:  # on white paper
        photo = photo.convert("RGBA")
        paper = Image.new("RGBA", photo.size, "white")
        photo = Image.alpha_composite(paper, photo)
    return np.asarray(ImageOps.fit(photo.convert("RGB"), (32, 32)))


# %% tags=["shared"]
def read_folder(folder):
    """Photos of ``folder/CLASS/``: images, labels, classes, and what is left out."""
    found, left = [], []
    for path in sorted(folder.glob("*/**/*")):
        parts = path.relative_to(folder).parts
        hidden = any(part[0] in "._@$#" for part in parts[:-1])  # of an archive, …
        if hidden or parts[-1][0] == "." or path.is_dir():
            continue
        try:
            with Image.open(path) as photo:
                found.append((square(photo), parts[0]))
        except (OSError, ValueError, SyntaxError) as error:  # Pillow has all three
            left.append(f"left out: {path}: {error}")
    classes, labels = np.unique([x for _, x in found], return_inverse=True)
    others = [x for x in folder.iterdir() if x.is_dir() and x.name not in classes]
    left += [f"left out: {path}" for path in sorted(others)]
    images = np.array([x for x, _ in found])
    return images, labels.astype(np.int32), classes.tolist(), left


# %% tags=["shared"]
def read_folders(source):
    """One part of photos, or ``train`` and ``test``, as pairs; classes; left out."""
    inside = {path.name.lower(): path for path in source.iterdir() if path.is_dir()}
    split = {"train", "test", "val", "valid", "validation"} & inside.keys()
    if split not in (set(), {"train", "test"}):
        raise ValueError(f"expected train and test, or classes, got {sorted(inside)}")
    folders = [inside["train"], inside["test"]] if split else [source]
    parts = [read_folder(folder) for folder in folders]
    names, left = [part[2] for part in parts], [x for part in parts for x in part[3]]
    if len(names[0]) < 2 or names[0] != names[-1]:
        raise ValueError(f"expected the same two or more classes, got {names}")
    return [part[:2] for part in parts], names[0], left


# %% tags=["shared"]
def photos_in(source):
    """Photos of a folder or of CIFAR: one part or two, as pairs; names of classes."""
    if source not in ("cifar10", "cifar100"):
        folder = Path(source).expanduser()
        folder = folder if folder.is_dir() else Path("..", source)
        parts, classes, left = read_folders(folder)
        print(*left, sep="\n")
        return parts, classes
    from torchvision import datasets

    kind, parts = getattr(datasets, source.upper()), []
    for train in (True, False):
        found = kind("data", train, download=True)
        parts.append((found.data, np.array(found.targets, np.int32)))
    return parts, found.classes


# %% tags=["shared"]
def load_photos(source):
    """Photos in three parts, ``n y x i`` and ``n``, and the names of the classes."""
    parts, classes = photos_in(source)
    parts = [(images / np.float32(255), labels) for images, labels in parts]
    rest, test = parts if len(parts) == 2 else divide(parts[0], 0.2)
    return *divide(rest, 0.1), test, classes


def mirror(uniforms, images, labels):
    """``augment`` for photos."""
    return augment(uniforms, images, labels, flip=True)


# %% tags=["shared"]
larger = {"image_size": 32, "n_channels": 3, "patch": 4, "dropout": 0.1}
larger |= {"n_blocks": 4, "m": 96, "f": 192}


def learn_photos(train, validation, classes, updates=640, **changes):
    """A ViT that is trained on photos, for about so many updates."""
    n = len(train[0])
    batch_size = min(64, 1 + n // 8)
    epochs = min(100, 1 + updates // (n // batch_size))
    warmup = max(1, min(50, epochs * (n // batch_size) // 10))
    usual = {"batch_size": batch_size, "learning_rate": 1e-3, "warmup": warmup}
    model = new_model(n_outputs=len(classes), **larger | changes)
    options = {"validation": validation, "augment": mirror}
    fit(
        model,
        cross_entropy,
        train,
        Settings(n_train=n, epochs=epochs, **usual),
        **options,
    )
    return model


# %% tags=["shared"]
def classify(path, model, classes):
    """The class that the model gives a picture file, and its probability."""
    with Image.open(path) as photo:
        image = square(photo) / np.float32(255)  # y x i
    z = as_numpy(attention_maps(model, tensor(image[None]))[0])[0]  # c
    p = np.exp(z - z.max()) / np.exp(z - z.max()).sum()
    return classes[p.argmax()], p.max()


source = os.environ.get("PHOTOS", "digits")  # of photos of yours
if source != "digits":
    *parts, own_test, classes = load_photos(source)
    updates = 640 if device == "cpu" else 30_000
    own_vit = learn_photos(*parts, classes, updates)
    share = accuracy(own_vit, *own_test)
    print(f"{share:.1%} of {len(own_test[0])} photos; guessing: {1 / len(classes):.0%}")

# %% [markdown] tags=["shared"]
# ## Extra: Without positions, a picture is a bag of patches
#
# How much of a digit is left without positions? And how much does a model with
# positions rely on them? We shuffle the patches of each test picture; the models with
# other positions were trained once, as the one above is, with five seeds.


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

# %% mystnb={"image": {"alt": "Two rows of eight handwritten digits. Above, as they are. Below, the same digits with their sixteen patches shuffled; hardly one can be recognised."}} tags=["shared", "figure"]
both = np.stack([x_test[:8], x_shuffled[:8]])[..., 0]
plots.pictures(
    (255 * both).round().astype(np.uint8), titles=["as they are", "patches shuffled"]
)

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
# and fall close to guessing.

# %% [markdown] tags=["shared"]
# Learned positions begin as random numbers. Does the ViT find out which patches are
# neighbours? Each small map below belongs to the patch at its place, and shows the
# cosine between its position vector and those of all 16 patches (dark: high), for the
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

# %% tags=["shared", "say"]
say(
    "Learned positions of patches that share a side have a mean cosine of "
    f"**{near['learned']:.2f}**, all other pairs {far['learned']:.2f}. Before "
    "training, both were close to 0. So the ViT has learned which are neighbours."
)

# %% tags=["shared", "check"]
# Checked: without positions, order has no effect; learned ones of neighbours are alike
bag_vit = new_model()
no_positions = {"positions.table": np.zeros((17, 48))}
from_arrays(bag_vit, to_arrays(bag_vit) | no_positions)
both = [as_numpy(attention_maps(bag_vit, tensor(x))[0]) for x in (x_test, x_shuffled)]
np.testing.assert_allclose(*both, atol=1e-5)
assert vit_shuffled < 0.5 and near["learned"] - far["learned"] > 0.15
assert max(map(abs, (near["before training"], far["before training"]))) < 0.15

# %% [markdown] tags=["shared"]
# ## Extra: A convolutional net of the same size
#
# This is the rival of the section on digits. To train it, give `fit` a `ConvNet(1, 10)`
# in place of the ViT.

# %% [markdown] tags=["torch"]
# `nn.Conv2d` wants the channels before the pixels.


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
# In place of a download we make a small model of torchvision with random weights.

# %% tags=["torch"]
import torchvision

theirs = torchvision.models.VisionTransformer(
    8, 2, 2, 4, 48, 96, num_classes=10, norm_layer=nn.LayerNorm
)
theirs.to(device).eval()
torch.manual_seed(0)
for parameter in theirs.parameters():
    nn.init.normal_(parameter, std=0.2)
published = {name: as_numpy(x) for name, x in theirs.state_dict().items()}

# %% tags=["shared"]
loaded = new_model(n_channels=3)
from_arrays(loaded, renamed(published, TORCHVISION))  # refuses another name or shape
in_colour = np.random.default_rng(0).random((360, 8, 8, 3), np.float32)  # b y x i
outputs = as_numpy(attention_maps(loaded, tensor(in_colour))[0])

# %% [markdown] tags=["torch"]
# To train only a new output layer, freeze the rest: such parameters get no gradient,
# and the optimizer skips them.


# %% tags=["torch"]
def freeze(model):
    """Options of ``fit``: none. Of the model only the output layer is trained."""
    model.requires_grad_(False)
    model.output.requires_grad_(True)
    return {}


# %% tags=["torch", "check"]
# Checked: the outputs are those of the published model
with torch.no_grad():
    expected = theirs(tensor(in_colour).permute(0, 3, 1, 2))  # b c
np.testing.assert_allclose(outputs, as_numpy(expected), atol=1e-4)
assert outputs.std() > 0.2

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
    "cls_token": "token",
    "pos_embed": "positions.table",
    "patch_embed.proj": "embed",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.out",
    "head.": "output.",
    "mlp.fc1": "ffn.linear1",
    "mlp.fc2": "ffn.linear2",
    "blocks.": "encoder.blocks.",
    "norm.": "encoder.norm.",
}
names = ["pos_embed", "patch_embed.proj.bias", "blocks.1.attn.qkv.bias", "norm.bias"]
arrays = renamed({name: np.zeros((1, 1)) for name in names}, TIMM)
assert set(arrays) <= set(to_arrays(loaded))
say("""Here any order will do. In `TORCHVISION`, `self_attention.in_proj_` must come
before `self_attention`, which is a part of it. And `norm.` with its dot leaves `norm1`
alone.""")

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
