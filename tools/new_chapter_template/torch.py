# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown] tags=["shared", "draft"]
# # TITLE
#
# *This chapter is a draft.*
#
# By the end you can write a softmax, say what leaves it unchanged, and have seen it
# checked. You need: to replace these sentences by a promise of your own, and to name
# here what a reader has to know before.

# %% [markdown] tags=["torch"]
# This page speaks **PyTorch**. The same page in JAX:
# [NAME_jax](NAME_jax.ipynb).

# %% tags=["shared", "hide-input"] mystnb={"code_prompt_show": "Show the set-up for Colab", "code_prompt_hide": "Hide the set-up for Colab"}
# In Colab this fetches the helpers of the book; anywhere else it does nothing.
import os
import subprocess
import sys

REPOSITORY = "https://github.com/example/transformers-side-by-side"

if "google.colab" in sys.modules and not os.path.isdir("helpers"):
    folder = REPOSITORY.rsplit("/", 1)[-1]
    if not os.path.isdir(folder):
        clone = ["git", "clone", "--quiet", "--depth", "1", REPOSITORY, folder]
        subprocess.run(clone, check=True)
    os.chdir(os.path.join(folder, "notebooks"))
    sys.path.insert(0, os.getcwd())

# %% tags=["torch"]
from functools import partial

import numpy as np
import torch

from helpers import plots
from helpers.shapes import as_numpy, check_shape

# %% [markdown] tags=["torch"]
# Say here what is different in PyTorch, and why: a layer draws its random numbers from
# one generator for all. `build` hides the difference.

# %% tags=["torch"]
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_default_device(device)
plots.use_style()
tensor = partial(torch.as_tensor, dtype=torch.float32, device=device)


def build(kind, *sizes, seed=0, **options):
    """Make a layer whose random numbers come from ``seed``."""
    torch.manual_seed(seed)
    return kind(*sizes, **options)


f"PyTorch {torch.__version__} on {device}"

# %% [markdown] tags=["shared"]
# ## A section is one claim, and its heading is the claim
#
# First the idea: scores $x_k$, one for each key $k$, become weights $w_k$ that are
# positive and sum to one. Then a formula,
#
# $$w_k = \frac{e^{x_k}}{\sum_j e^{x_j}},$$
#
# then the code, and a cell that checks what was said. Adding the same number to all
# scores changes nothing, because it cancels. A softmax is written with `axis` in one
# framework and with `dim` in the other.


# %% tags=["torch"]
def softmax(x):
    """Weights that sum to one: ``... k -> ... k``."""
    powers = torch.exp(x - x.amax(dim=-1, keepdim=True))
    return powers / powers.sum(dim=-1, keepdim=True)


# %% tags=["shared"]
x = np.random.default_rng(0).normal(size=(4, 6))  # q k
weights = as_numpy(softmax(tensor(x)))
check_shape(weights, "q k", q=4, k=6)
np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-6)
np.testing.assert_allclose(as_numpy(softmax(tensor(x + 5))), weights, atol=1e-6)

# %% [markdown] tags=["shared"]
# Then a picture, with an alt text in the cell's metadata.

# %% tags=["shared"] mystnb={"image": {"alt": "A table of four rows and six columns; the darker a cell, the larger its weight."}}
plots.heatmaps([weights])

# %% [markdown] tags=["shared"]
# **Exercise 1, a change of code.** Something to do: which weights does a softmax give
# to a thousand equal scores? Predict, then look.

# %% tags=["shared", "hide-cell"] jupyter={"source_hidden": true}
equal = as_numpy(softmax(tensor(np.zeros(1000))))
np.testing.assert_allclose(equal, 1 / 1000, rtol=1e-5)  # all the same share

# %% [markdown] tags=["shared"]
# ## What to take along
#
# * One line for each thing that the reader can do now.
# * When the chapter is finished, remove the tag `draft` from the first cell, and its
#   sentence: then the tests hold the page to the size of the others, too.
