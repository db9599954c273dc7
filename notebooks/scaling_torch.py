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
# # More than one device
#
# By the end you can share a training among devices in three ways, count what travels
# between them, estimate what more devices bring, and resume a run after a failure. You
# need: *A model that writes*, and *What attention costs* for the estimate.
#
# Training on one device would take months, or the model does not fit into its memory.
# So take more devices. Each sees only its own memory: gradients, weights or activations
# must travel, over links far slower than the arithmetic. Who holds what, and what
# travels when?
#
# You need no cluster: this page simulates four devices on your processor, runs the same
# code on them as on thousands of GPUs, and kills a process in the middle of a training.

# %% [markdown] tags=["torch"]
# This page uses **PyTorch**. The same page in JAX: [scaling_jax](scaling_jax.ipynb).

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

import os

import numpy as np
import torch
from torch import distributed, nn

from helpers import as_numpy, check
from helpers.data import text
from helpers.jobs import torchrun
from helpers.show import drawing, plots, recorded, say, table
from helpers.torch import LanguageModel, next_token

plots.use_style()

# %% [markdown] tags=["shared"]
# ## Data parallel: every device takes a part of the batch
#
# The loss is a mean over the texts of a batch. So its gradient is the mean of those of
# equal parts of the batch, and four devices can compute these at the same time:
#
# 1. Each device has the whole model, with the same weights.
# 2. Each computes the gradient of its quarter of the batch.
# 3. The four gradients are averaged, and *all* devices get the mean: an **all-reduce**.
# 4. Each makes the same update, so the weights stay the same.

# %% mystnb={"image": {"alt": "Three ways to share a training among four devices. Data parallel: each device has the whole model and a quarter of the batch, gradients travel. Sharded weights: each has a quarter of the model and a quarter of the batch, gradients and weights travel. Tensor parallel: each has a quarter of the model and the whole batch, activations travel."}} tags=["shared", "figure"]
drawing("ways-to-share")

# %% [markdown] tags=["shared"]
# The first row of the drawing is this **data-parallel** training, and it is what most
# people need; the second comes below, the third in an extra. Our example is a small
# language model, on bytes of Python's own source text. First, its training on one
# device:


# %% tags=["shared"]
def draw_batches(written, updates=20, b=32):
    """Tokens from random places of a text, ``updates b s+1``: bytes of UTF-8."""
    codes = np.frombuffer(written.encode("utf-8"), np.uint8)
    starts = np.random.default_rng(0).integers(len(codes) - 33, size=(updates, b))
    return codes[starts[..., None] + np.arange(33)].astype(np.int32)


# %% tags=["shared"]
sizes = {"n_blocks": 2, "n_heads": 4, "f": 256, "max_length": 32}
sizes |= {"norm_first": True, "activation": "gelu"}


# %% tags=["torch"]
def new_model():
    """A model with the same initial weights each time."""
    torch.manual_seed(0)
    return LanguageModel(256, 64, **sizes)


# %% tags=["torch"]
def one_update(model, optimizer, tokens):
    """One update of the model; returns the loss before it."""
    loss, _ = next_token(model, tokens)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def adam(model):
    """The optimiser of the model."""
    return torch.optim.Adam(model.parameters(), lr=2e-3)


def train(model, optimizer, batches):
    """One update for each batch: the losses ``n``."""
    tokens = torch.tensor(batches).long()
    return torch.stack([one_update(model, optimizer, x) for x in tokens])


# %% [markdown] tags=["torch"]
# PyTorch runs one *process* for each device, all with the same program. Each has a
# number, its *rank*, of the *world size*, and takes its part of the batch.
# `DistributedDataParallel` copies the weights of rank 0, and does step 3 inside
# `backward`. (`"gloo"` is for CPUs; for GPUs see *On your GPUs*.) Only to look inside,
# `collectives` counts what a function exchanges; your own training needs no such line.

# %% tags=["torch"]
from collections import Counter

from torch.profiler import profile


def share(batches):
    """The rows of each batch that belong to this process."""
    rank, n = distributed.get_rank(), distributed.get_world_size()
    return batches[:, rank::n]


def collectives(function, *args):
    """What the processes exchange in ``function(*args)``, and how often."""
    with profile() as record:
        function(*args)
    names = {"c10d::allreduce_": "all-reduce", "c10d::_allgather_base_": "all-gather"}
    names |= {"c10d::_reduce_scatter_base_": "reduce-scatter"}
    found = (e for e in record.key_averages() if e.key in names)
    return Counter({names[e.key]: e.count for e in found})


# %% tags=["torch"]
def data_parallel(batches):
    """Losses of whole batches, and collectives of one update, in each process."""
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(new_model())
    optimizer, mine = adam(model), share(batches)
    losses = train(model, optimizer, mine)
    distributed.all_reduce(losses)  # the sum over the parts
    losses = as_numpy(losses) / distributed.get_world_size()
    return losses, collectives(train, model, optimizer, mine[:1])


# %% [markdown] tags=["torch"]
# To run it outside this page, save the set-up and these cells beside `helpers/`, in a
# file that ends with `data_parallel(draw_batches(written))`, for a text `written`, and
# start it by `torchrun --nproc-per-node 4 file.py`. Here the page's `torchrun` calls a
# function in four new processes.

# %% tags=["torch"]
batches = draw_batches(text.load()["train"])  # a str, also of your own
model = new_model()
alone = as_numpy(train(model, adam(model), batches))
shared, counted = torchrun(data_parallel, 4, batches)[0]

# %% tags=["shared", "say"]
gap = np.abs(shared - alone).max()
say(
    f"In update {len(alone)} the loss is {alone[-1]:.3f}. The largest gap between one "
    f"device and four, in any update, is {gap:.0e}. "
    f"One update takes {counted['all-reduce']} × all-reduce."
)

# %% tags=["shared", "check"]
# Checked: in every update, the loss of four devices is that of one
np.testing.assert_allclose(shared, alone, atol=1e-5)
assert alone[-1] < 0.9 * alone[0] and shared.shape == (20,)
assert counted["all-reduce"] in (1, 2) and len(counted) == 1

# %% [markdown] tags=["torch"]
# (One operation, because gradients are packed into buckets of some megabytes, and ours
# fit into one. Those of a larger model fill several, and the first ones travel while
# `backward` is still running.)

# %% [markdown] tags=["shared"]
# **Exercise 1.** Two devices get 24 and 8 of the 32 texts, each computes the mean over
# its own, and the all-reduce averages the two. Is that the gradient of the batch?

# %% tags=["shared", "answer"]
each = np.random.default_rng(0).normal(size=(32, 5))  # a gradient for each text
large, few = each[:24].mean(0), each[24:].mean(0)
assert not np.allclose((large + few) / 2, each.mean(0))
np.testing.assert_allclose((24 * large + 8 * few) / 32, each.mean(0))
say(
    "No: the texts of the smaller part count three times as much as the others. With "
    "padding it happens even with 16 and 16, because a mean over *real tokens* divides "
    "by different numbers. Weight the parts by what they contain: here, by 24 and 8. "
    "(JAX compiles the mean over the whole batch, so there it is automatic. In "
    "PyTorch, each process knows only its own mean.)"
)

# %% [markdown] tags=["shared"]
# ## An all-reduce can run around a ring
#
# Four devices, each with its own gradient: how do all four get the sum? If all send to
# the first one, its link carries everything. In a **ring** ([Patarasuk & Yuan
# 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)), each device sends to the next one
# only. Each gradient is cut into four parts, so every link is busy in every step.

# %% mystnb={"image": {"alt": "Seven tables of four devices by four parts: before, and after each of six steps. A number says how many devices a part has summed. In steps 1 to 3, the reduce-scatter, arrows lead from four parts to the same parts of the next device, where the number grows by one, up to 4. In steps 4 to 6, the all-gather, the parts with a 4 go around, until all sixteen numbers are 4."}} tags=["shared", "figure"]
drawing("ring")

# %% [markdown] tags=["shared"]
# Rows are devices, columns the parts of their gradients. A number says how many devices
# a part has summed; an arrow marks what came from the device above (above the first is
# the last).
#
# * Steps 1 to 3, the **reduce-scatter**: every device adds its own part to the one that
#   arrives, and passes the sum on. In the end each device has one finished part.
# * Steps 4 to 6, the **all-gather**: the finished parts go around.
#
# So each of $n$ devices sends $2(n-1)$ parts, each an $n$-th of the $B$ bytes of its
# gradient:
#
# $$\text{bytes sent by each device} = 2\,\frac{n-1}{n}\,B \tag{1}$$
#
# That is $1.5\,B$ for four devices, and for any number less than $2B$. (The first extra
# has the ring in code. Among many hosts, libraries also use trees.)

# %% [markdown] tags=["shared"]
# ## Sharded: no device holds the whole model
#
# Data parallel divides the computation and the memory of activations. Everything else
# is there four times: all weights, all gradients, both of Adam's averages. In the
# second row of the first drawing, each device *keeps* only a quarter of them. Before a
# block computes, all devices gather its weights; afterwards they drop them again. A
# reduce-scatter leaves each device the summed gradient of its own quarter. This is
# **FSDP**, fully sharded data parallel ([Zhao et al.
# 2023](https://arxiv.org/abs/2304.11277)), or stage 3 of ZeRO ([Rajbhandari et al.
# 2020](https://arxiv.org/abs/1910.02054)).

# %% tags=["torch"]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def bytes_on_one(arrays):
    """Bytes that this process keeps of arrays, sharded or not."""
    local = [x.to_local() if isinstance(x, DTensor) else x for x in arrays]
    return sum(x.nbytes for x in local if x.ndim)


# %% tags=["torch"]
def cut(model):
    """The model; each process keeps its part of the blocks, and of the rest."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for part in (*model.decoder.blocks, model):
        fully_shard(part, mesh=mesh)
    return model


def sharded(batches):
    """Losses, bytes of weights and averages, and collectives, in each process."""
    distributed.init_process_group("gloo")
    model = cut(new_model())
    optimizer, mine = adam(model), share(batches)
    losses = train(model, optimizer, mine)
    distributed.all_reduce(losses)
    losses = as_numpy(losses) / distributed.get_world_size()
    averages = [x for state in optimizer.state.values() for x in state.values()]
    kept = bytes_on_one(model.parameters()), bytes_on_one(averages)
    return losses, kept, collectives(train, model, optimizer, mine[:1])


# %% [markdown] tags=["torch"]
# `fully_shard` replaces each parameter by a `DTensor`, which knows its own part, so the
# optimiser is made afterwards. (A model that does not fit before it is cut is built
# under `torch.device("meta")`, without memory.)

# %% tags=["torch"]
in_quarters, kept, gathered = torchrun(sharded, 4, batches)[0]
n_bytes = bytes_on_one(model.parameters())

# %% tags=["shared"]
exchanged = ", ".join(f"{n} × {name}" for name, n in sorted(gathered.items()))
print(f"largest gap of a loss: {np.abs(in_quarters - alone).max():.0e}")
print(f"one update takes {exchanged}")

# %% tags=["shared", "say"]
head = ["kept by one device (bytes)", "weights", "Adam's averages"]
rows = [["data parallel", f"{n_bytes:,}", f"{2 * n_bytes:,}"]]
rows += [["sharded", *(f"{n:,}" for n in kept)]]
say(table(head, *rows))

# %% [markdown] tags=["shared"]
# The losses are those of one device. Each device also keeps a quarter of the gradients,
# which are not in the table. An update exchanges more, because weights travel, too. If
# they are gathered for the forward and again for the backward pass, an update moves 1.5
# times the bytes of data parallel: two all-gathers and a reduce-scatter, instead of one
# of each ([Rajbhandari et al. 2020](https://arxiv.org/abs/1910.02054), sec. 7).

# %% tags=["shared", "check"]
# Checked: equal losses, and a quarter of the bytes on each device
np.testing.assert_allclose(in_quarters, alone, atol=1e-5)
assert gathered.total() > counted.total()
assert kept == (n_bytes // 4, n_bytes // 2) and gathered["all-gather"] >= 3

# %% [markdown] tags=["torch"]
# (The weights of a block are gathered twice, those in no block once. Gloo makes an
# all-reduce of each reduce-scatter, and moves more bytes.)

# %% [markdown] tags=["shared"]
# **Exercise 2, predict, then run.** The model gets four blocks instead of two. Which of
# its collectives become more, with whole weights and with cut ones? Set
# `sizes["n_blocks"] = 4` and count again, by one batch (then set it back).

# %% tags=["torch", "answer"]
sizes["n_blocks"] = 4
_, deep = torchrun(data_parallel, 4, batches[:1])[0]
*_, deeper = torchrun(sharded, 4, batches[:1])[0]
sizes["n_blocks"] = 2
assert deep == counted and deeper["all-gather"] > gathered["all-gather"] + 3
say(
    "The gradients of all blocks fit into one bucket, so whole weights need one "
    "operation as before (with more bytes). Cut weights are gathered block by block: "
    f"{deeper['all-gather']} times instead of {gathered['all-gather']}."
)

# %% [markdown] tags=["shared"]
# ## More devices share the computation, not the exchange
#
# How long does an update take on $n$ devices? Each computes an $n$-th of it. But
# however many they are, each still sends a whole gradient or more:
#
# $$t(n) = \frac{6ND}{n\,F} + 2\,\frac{n-1}{n}\,\frac{B}{W} . \tag{2}$$
#
# Here $6ND$ are the operations for $N$ parameters and $D$ tokens (*What attention
# costs*), $F$ is what one device does in a second, $B$ the bytes of the gradient, and
# $W$ the bytes that a link carries in a second. Finished gradients can travel during
# the backward pass, which is two thirds of the first term. Left out are *latency*,
# which in a ring grows with $n$, and the optimiser's update, which data parallel does
# not divide.
#
# Between hosts, $W$ is what the eight network cards of a host carry together: the
# gradient is cut into eight, and eight rings run at once, each over another card.
# (NVLink carries them inside the hosts at the same time, and is a little faster.)
#
# Here is formula (2), for GPT-2's largest model on machines that you can rent. Put the
# numbers of your own training in their place.

# %% tags=["shared"]
FLOPS = 989e12  # H100, bfloat16, dense: https://www.nvidia.com/en-us/data-center/h100
USED = 0.46  # by PaLM, exchange included: https://arxiv.org/abs/2204.02311, table 3
NVLINK = 450e9  # bytes per second, each way: half of the 900 GB/s of the data sheet
PCIE = 64e9  # without NVLink, likewise: half of its 128 GB/s
NETWORK = 8 * 50e9  # of a host: https://docs.nvidia.com/dgx/dgxh100-user-guide
ETHERNET = 1.25e9  # of a host, for example 10 Gbit/s
N = 1.5e9  # parameters: https://openai.com/index/better-language-models


def step_seconds(n, tokens, link, n_parameters=N, used=USED):
    """Compute, exchange, one after the other, and with the most overlap."""
    compute = 6 * n_parameters * tokens / (n * FLOPS * used)
    gradient_bytes = 2 * n_parameters  # in bfloat16; float32 is twice as much
    exchange = 2 * (n - 1) / n * gradient_bytes / link
    waits = max(0, exchange - compute * 2 / 3)
    return compute, exchange, compute + exchange, compute + waits


# %% tags=["shared"]
cases = {
    "2 GPUs, no NVLink": {"n": 2, "tokens": 2**15, "link": PCIE},
    "64 hosts": {"n": 512, "tokens": 2**19, "link": NETWORK},
    "64 hosts, 16 times the batch": {"n": 512, "tokens": 2**23, "link": NETWORK},
}
forecast = {name: step_seconds(**case) for name, case in cases.items()}
pair, many, large = forecast.values()

# %% tags=["shared", "say"]
rows = [[k, *(f"{x:.3f}" for x in v)] for k, v in forecast.items()]
for row, v in zip(rows, forecast.values(), strict=True):
    row.append(f"{v[1] / v[0]:.0%}")
head = ["forecast (seconds)", "compute", "exchange", "one after the other", "overlap"]
say(table([*head, "exchange / compute"], *rows))

# %% [markdown] tags=["shared"]
# With so many tokens on each, two GPUs need no fast link. On 64 hosts, each GPU
# computes a 512th of the tokens, but exchanges the whole gradient. A larger batch
# helps, if the training bears it. (More devices for the same batch are called *strong
# scaling*; a batch that grows with them, *weak scaling*.)
#
# How many times as fast are 64 hosts as one? It depends on `USED`: the faster a GPU
# computes, the longer it waits. Without overlap, and with the most:

# %% tags=["shared"]
one, slow = step_seconds(8, 2**19, NVLINK), step_seconds(512, 2**19, ETHERNET)
gains = {}
for used in (0.3, USED, 0.6):
    *_, in_turn, overlap = step_seconds(8, 2**19, NVLINK, used=used)
    *_, in_turn_64, overlap_64 = step_seconds(512, 2**19, NETWORK, used=used)
    gains[used] = in_turn / in_turn_64, overlap / overlap_64
    least, most = gains[used]
    print(f"{used:.0%} of the limit used: {least:.0f} to {most:.0f} times")

# %% tags=["shared", "say"]
say(
    f"So 64 times the machines give **{gains[0.6][0]:.0f} to {gains[0.3][1]:.0f} "
    "times** the speed, if a GPU reaches 30% to 60% of its limit. With only 10 "
    f"Gbit/s for each, they are slower than one: {slow[3] / one[2]:.1f} times as long."
)

# %% tags=["shared", "check"]
# Checked: inside a host the exchange is small, on 64 it is not, and needs its network
assert pair[1] < 0.2 * pair[0]
assert one[1] < 0.02 * one[0] and 0.5 < many[1] / many[0] < 1.5
assert 25 < gains[0.6][0] < gains[0.3][1] <= 64 and large[1] < 0.1 * large[0]
assert slow[3] > 2 * one[2]

# %% [markdown] tags=["shared"]
# **Exercise 3.** How slow may the network of a host be before 512 GPUs with the large
# batch spend half of the time on the exchange, without any overlap?

# %% tags=["shared", "answer"]
compute, exchange, *_ = step_seconds(512, 2**23, NETWORK)
slowest = NETWORK * exchange / compute
assert 10e9 < slowest < 30e9
factor = compute / exchange
say(
    f"At {slowest / 1e9:.0f} GB/s, or {factor:.0f} times slower than above, the "
    "exchange takes as long as the computation."
)

# %% [markdown] tags=["shared"]
# ## A run survives its processes
#
# With many devices, failures are frequent. The training of
# [Llama 3](https://arxiv.org/abs/2407.21783) on 16,384 GPUs had 419 unexpected
# interruptions in 54 days (section 3.3.4). One failure stops the whole run, because the
# others wait for its part. So a long run needs three things:
#
# * something that notices the failure and stops the other processes;
# * a **checkpoint** with the weights, the averages and the number of updates (and, if
#   you use dropout or a loader, the random state and the place in the data);
# * a restart from the checkpoint.
#
# The test of all three: kill a process.

# %% tags=["torch"]
import signal
import tempfile


def save(done, model, optimizer, file):
    """A checkpoint after ``done`` updates; whatever happens, never half a file."""
    torch.save((done, model.state_dict(), optimizer.state_dict()), f"{file}.draft")
    os.replace(f"{file}.draft", file)


def resume(model, optimizer, file):
    """Weights and averages from a checkpoint, if there is one; how many updates."""
    if not os.path.exists(file):
        return 0
    done, weights, averages = torch.load(file, "cpu", weights_only=True)
    model.load_state_dict(weights)
    optimizer.load_state_dict(averages)
    return done


# %% tags=["torch"]
KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has SIGTERM only


def with_checkpoints(file, batches, killed_at=None):
    """Losses from the checkpoint on, if there is one; the update it began at."""
    distributed.init_process_group("gloo")
    rank, losses = distributed.get_rank(), []
    model = nn.parallel.DistributedDataParallel(new_model())
    optimizer, mine = adam(model), torch.tensor(share(batches)).long()
    begin = resume(model.module, optimizer, file)
    for i in range(begin, len(mine)):
        if i == killed_at and begin == 0 and rank == 1:
            os.kill(os.getpid(), KILL)
        losses.append(one_update(model, optimizer, mine[i]))
        if (i + 1) % 10 == 0 and rank == 0:
            save(i + 1, model.module, optimizer, file)
    losses = torch.stack(losses)
    distributed.all_reduce(losses)
    return as_numpy(losses) / distributed.get_world_size(), begin


# %% [markdown] tags=["torch"]
# Of two processes, number 1 kills itself before update 16; the last checkpoint is from
# update 10. `torchrun --max-restarts 1` notices, stops the other process, and starts
# both again.

# %% tags=["torch"]
folder = tempfile.TemporaryDirectory()
file = f"{folder.name}/run.pt"
rescued, begin = torchrun(with_checkpoints, 2, file, batches, 15, restarts=1)[0]

# %% tags=["shared", "say"]
gap = np.abs(rescued - shared[begin:]).max()
say(
    f"The second attempt began after update {begin}. Its {len(rescued)} losses differ "
    f"by at most {gap:.0e} from those of an undisturbed run: all is back."
)

# %% tags=["shared", "check"]
# Checked: it went on from the checkpoint, and nothing is lost
assert begin == 10 and rescued.shape == (10,) and gap < 1e-5

# %% [markdown] tags=["shared"]
# ## On your GPUs
#
# Which way? Data parallel if it fits, else sharded, which exchanges more. Half of the
# memory is for activations; if they need more, accumulate gradients (see the extra):


# %% tags=["shared"]
def way_to_share(n_parameters, memory):
    """Data parallel if it fits ``memory`` bytes, else sharded; for Adam in float32."""
    kept = 16 * n_parameters  # weights, gradients, two averages
    if kept <= memory / 2:
        return "data parallel"
    devices = 2 ** int(np.ceil(np.log2(kept / (memory / 2))))  # so they divide the axes
    return f"sharded, on {devices} devices or more"


print("GPT-2 small, GPUs with 16 GB:", way_to_share(124e6, 16e9))
print("its largest, 16 GB:", way_to_share(1.5e9, 16e9))
print("its largest, 80 GB:", way_to_share(1.5e9, 80e9))
print("7 billion parameters, 80 GB:", way_to_share(7e9, 80e9))

# %% [markdown] tags=["shared"]
# (Tensor parallel, inside a host, is for a single layer that is too large or too slow.)
# For a language model on your text, [one file is
# enough](../book/index.md#one-file-to-take-along). In a script of your own, with the
# functions of this page:

# %% [markdown] tags=["torch"]
# ```python
# device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # one for each process
# torch.cuda.set_device(device)
# distributed.init_process_group("nccl", device_id=device)
# model = new_model().to(device)
# copies = nn.parallel.DistributedDataParallel(model)
# optimizer = adam(model)
# with open("my.txt", encoding="utf-8") as file:
#     dataset = draw_batches(file.read(), 1000).reshape(-1, 33)  # rows of tokens
# sampler = DistributedSampler(dataset)  # each process reads its own rows
# loader = DataLoader(dataset, batch_size=32, sampler=sampler)  # 32 for each GPU
# for epoch in range(resume(model, optimizer, "run.pt"), 3):
#     sampler.set_epoch(epoch)  # another order
#     for tokens in loader:
#         loss = one_update(copies, optimizer, tokens.long().to(device))
#     if distributed.get_rank() == 0:
#         print(epoch + 1, float(loss))  # of its own rows
#         save(epoch + 1, model, optimizer, "run.pt")
# distributed.destroy_process_group()  # the page's `torchrun` does this for you
# ```
#
# (`DataLoader` and `DistributedSampler` are in `torch.utils.data`; your own `dataset`
# may give what your `one_update` takes.) To shard, use `cut`, with a mesh of `"cuda"`.
# On each of two hosts:
#
# ```sh
# torchrun --nnodes 2 --nproc-per-node gpu \
#     --rdzv-backend c10d --rdzv-endpoint FIRST:29500 file.py
# ```
#
# `FIRST` is the name of one of them. Checkpoints need a folder that all hosts can read
# (sharded weights are written by `torch.distributed.checkpoint`). On Windows, there is
# `"gloo"` only, with `USE_LIBUV=0` in the environment.

# %% [markdown] tags=["shared"]
# ## Extra: The ring in code
#
# A ring for $n$ devices has $n-1$ steps that add, and $n-1$ that pass on. Here are the
# steps of the drawing, for any $n$:


# %% tags=["shared"]
def ring_all_reduce(arrays):
    """The sum of ``n`` arrays for each device, and how many numbers each one sends."""
    n = len(arrays)
    parts = [np.array_split(a, n) for a in arrays]  # device, part
    sent = [0] * n
    for step in range(2 * (n - 1)):
        moving = [(i, (i - step) % n) for i in range(n)]  # device i sends this part
        messages = [parts[i][j] for i, j in moving]
        for (i, j), message in zip(moving, messages, strict=True):
            there = parts[(i + 1) % n]
            there[j] = there[j] + message if step < n - 1 else message
            sent[i] += len(message)
    return [np.concatenate(p) for p in parts], sent


# %% tags=["shared", "check"]
# Checked: all devices have the sum, and each sends what formula (1) says
arrays = np.random.default_rng(0).normal(size=(16, 720_720))
for n in (2, 3, 4, 6, 8, 16):
    sums, sent = ring_all_reduce(arrays[:n])
    assert all(np.allclose(total, arrays[:n].sum(axis=0)) for total in sums)
    assert sent == [2 * (n - 1) * 720_720 // n] * n and max(sent) < 2 * 720_720

# %% [markdown] tags=["shared"]
# ## Extra: Accumulating and clipping give what one device gives
#
# Two habits of a training loop need care on several devices. If a device's part of the
# batch is still too large, it adds up the gradients of smaller parts: *gradient
# accumulation*. The sum needs to be exchanged only once, after the last part.
# *Clipping* shortens a gradient that is too long. Its length comes from all weights. So
# where gradients are sharded, the devices add up the squares of their parts before they
# clip.

# %% [markdown] tags=["torch"]
# After `set_requires_gradient_sync(False)`, `backward` exchanges no gradients. (They
# stay whole until the last part, which needs memory. With `DistributedDataParallel`,
# write `with model.no_sync():`.) Each loss is divided by two, because the gradient is a
# mean. `clip_grad_norm_` knows which gradients are sharded.


# %% tags=["torch"]
def accumulate(model, parts):
    """Mean of the gradients of the parts of a batch; they are exchanged once."""
    for i, tokens in enumerate(parts, start=1):
        model.set_requires_gradient_sync(i == len(parts))
        loss, _ = next_token(model, tokens)
        (loss / len(parts)).backward()


# %% tags=["torch"]
def of_halves(batches):
    """Gradient of two half batches, sharded; its norm before and after clipping."""
    distributed.init_process_group("gloo")
    model = cut(new_model())
    accumulate(model, torch.tensor(share(batches)[0]).long().chunk(2))
    grads = [as_numpy(p.grad.full_tensor()) for p in model.parameters()]
    before = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    after = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    return grads, [norm.full_tensor().item() for norm in (before, after)]


# %% tags=["torch"]
model = new_model()
next_token(model, torch.tensor(batches[0]).long())[0].backward()
expected = [as_numpy(p.grad) for p in model.parameters()]
norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5).item()
grads, norms = torchrun(of_halves, 4, batches)[0]

# %% tags=["shared", "say"]
gap = max(np.abs(a - b).max() for a, b in zip(grads, expected, strict=True))
say(
    f"Two half batches, sharded among four devices: the largest gap to the gradient of "
    f"one batch on one device is {gap:.0e}. Its norm is {norm:.4f} on one device, "
    f"{norms[0]:.4f} sharded, and {norms[1]:.4f} after clipping."
)

# %% tags=["shared", "check"]
# Checked: half batches and sharding change neither the gradient nor its clipped norm
for one, other in zip(grads, expected, strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)
np.testing.assert_allclose(norms, [norm, 0.5], rtol=1e-4)
assert norm > 1

# %% [markdown] tags=["shared"]
# ## Extra: Measured on two cores
#
# Does formula (2) describe real updates? Here are times on a processor of two cores,
# recorded once, with up to four processes of one thread each. The model is larger than
# ours: four blocks of $m=256$. We fit two numbers: the time per text and core, and the
# time per byte sent.

# %% tags=["torch", "experiment"]
# Experiment: the recorded times, and a fit of the time of a text and of a byte
(record,) = recorded("scaling-torch")[-1:]
rows = record["rows"]
times = np.array([one["milliseconds"] for one in rows])
n = np.array([one["processes"] for one in rows])
texts = np.array([one["batch"] for one in rows])  # for three processes 126
sent = 2 * (n - 1) / n * record["gradient_bytes"]
terms = np.stack([texts / np.minimum(n, record["cores"]), sent], axis=1)
(work, byte), *_ = np.linalg.lstsq(terms, times)
fitted = terms @ (work, byte)
error, rate = np.abs(fitted / times - 1).mean(), 1e-6 / byte
kinds = np.array([one["scaling"] for one in rows])
strong, weak = times[kinds == "strong"], times[kinds == "weak"]

# %% mystnb={"image": {"alt": "Milliseconds of an update over the number of processes, from one to four, measured and by the fitted model. With a fixed batch, two processes need between half and two thirds of the time of one, and four no less than two; with a fixed batch for each process, the time of four is above twice that of one."}} tags=["shared", "figure"]
panels = {}
for kind, title in (("strong", "128 texts in all"), ("weak", "64 texts for each")):
    one = kinds == kind
    points = {"measured": (n[one], times[one]), "fitted": (n[one], fitted[one])}
    panels[f"{title} (ms)"] = points
fig = plots.curves(panels, x="processes", marks="o", size=(6.4, 2.6))
for ax in fig.axes:
    ax.set_ylim(bottom=0)
fig

# %% tags=["shared", "say"]
say(
    f"On the left, two processes need {strong[1] / strong[0]:.0%} of the time of one, "
    f"four {strong[3] / strong[0]:.0%}; on the right, two {weak[1] / weak[0]:.0%}. "
    f"The fit is off by {error:.0%} on average, with "
    f"{work:.1f} ms for a text and {rate:.2f} GB/s between processes."
)

# %% [markdown] tags=["shared"]
# On the left is strong scaling: four processes are slower than two, because they share
# two cores. On the right is weak scaling: with a core for each, the ideal is the time
# of one process. The rate between processes includes copying and waiting.

# %% tags=["shared", "check"]
# Checked: two processes beat one, four share two cores, and the fit explains the times
assert record["cores"] == 2 and strong[1] < 0.7 * strong[0]
assert weak[3] > 2 * weak[0] and strong[3] > strong[1]
assert error < 0.09 and work > 0 < rate

# %% [markdown] tags=["shared"]
# ## Extra: Tensor parallel cuts one matrix among four devices
#
# Sharded weights are gathered before they are used. The third row of the first drawing
# leaves them where they are, and lets the activations travel. A feed-forward net is
# $\phi(xW_1)W_2$. Cut $W_1$ into columns and $W_2$ into rows. Each device computes its
# columns of the hidden layer, applies $\phi$, and multiplies by its rows. One
# all-reduce sums the four results ([Shoeybi et al.
# 2019](https://arxiv.org/abs/1909.08053)):
#
# $$\phi(xW_1)W_2 = \sum_{i=1}^{4} \phi(xW_1^{(i)})\,W_2^{(i)} \tag{3}$$
#
# Attention is cut by heads: the layers of queries, keys and values into columns, the
# output layer into rows. (In a fourth way, *pipeline parallel*, each device has some of
# the blocks: [Huang et al. 2019](https://arxiv.org/abs/1811.06965).)


# %% tags=["torch"]
class Block(nn.Module):
    """A pre-norm block without masks, ``b s m -> b s m``; heads of ``d`` features.

    It never asks how many heads there are: on one of four devices, a quarter of them.
    """

    def __init__(self, m, d, f):
        super().__init__()
        self.d = d
        self.norm1, self.norm2 = nn.LayerNorm(m), nn.LayerNorm(m)
        self.query, self.key = nn.Linear(m, m), nn.Linear(m, m)
        self.value, self.out = nn.Linear(m, m), nn.Linear(m, m)
        self.linear1, self.linear2 = nn.Linear(m, f), nn.Linear(f, m)

    def forward(self, x):
        y = self.norm1(x)
        qkv = self.query, self.key, self.value
        cut = (layer(y).unflatten(-1, (-1, self.d)) for layer in qkv)
        attend = nn.functional.scaled_dot_product_attention
        heads = attend(*(z.transpose(1, 2) for z in cut))
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.linear2(nn.functional.gelu(self.linear1(self.norm2(x))))


# %% tags=["torch"]
from torch.distributed.tensor import parallel


def new_block():
    """A block with the same initial weights each time."""
    torch.manual_seed(0)
    return Block(64, 16, 256)


# %% tags=["torch"]
def tensor_parallel(x):
    """Output, collectives and kept bytes of a block cut among all processes."""
    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    columns, rows = parallel.ColwiseParallel(), parallel.RowwiseParallel()
    plan = {"query": columns, "key": columns, "value": columns, "out": rows}
    plan |= {"linear1": columns, "linear2": rows}
    block = parallel.parallelize_module(new_block(), mesh, plan)
    x, kept = torch.tensor(x), bytes_on_one(block.parameters())
    return as_numpy(block(x)), collectives(block, x), kept


# %% tags=["torch"]
x = np.random.default_rng(0).normal(size=(2, 10, 64)).astype(np.float32)  # b s m
together_y, summed, part = torchrun(tensor_parallel, 4, x)[0]
block = new_block()
alone_y, whole = as_numpy(block(torch.tensor(x))), bytes_on_one(block.parameters())

# %% tags=["shared", "say"]
gap = np.abs(together_y - alone_y).max()
say(
    f"The outputs differ by {gap:.0e}. A device keeps {part / whole:.0%} of the "
    f"block's bytes; the forward pass needs {summed['all-reduce']} × all-reduce."
)

# %% [markdown] tags=["shared"]
# (Norms and some biases are whole.) One sum is for attention, one for the feed-forward
# net. The computation has to wait for them, so this way needs the fastest links: those
# inside one machine.

# %% tags=["shared", "check"]
# Checked: the same output, two sums, and about a quarter of the bytes
np.testing.assert_allclose(together_y, alone_y, atol=1e-5)
assert summed == {"all-reduce": 2} and 0.25 < part / whole < 0.28

# %% [markdown] tags=["shared"]
# ## Extra: Your turn, from a blank cell
#
# Write one step of the ring yourself: replace the `...`, and run the cell. `check`
# tries several rings and steps, and says what is wrong.


# %% tags=["shared", "your-turn"]
def my_ring_step(parts, step):
    """The parts of all ``n`` devices after a step of the ring, ``n n s -> n n s``.

    ``parts[i, j]`` is part ``j`` of device ``i``, and ``step`` counts from 0. In it,
    device ``i`` sends part ``i - step``, counted around the ring, to device ``i + 1``.
    The first ``n - 1`` steps add what arrives, the others put it in place. Return a new
    array of the framework, and leave ``parts`` as it is.
    """
    ...


check("scaling.ring_step", my_ring_step)


# %% tags=["torch", "answer"]
def my_ring_step(parts, step):
    n, after = len(parts), parts.clone()
    for i in range(n):
        there, part = (i + 1) % n, (i - step) % n
        after[there, part] = parts[i, part]
        if step < n - 1:
            after[there, part] += parts[there, part]
    return after


assert check("scaling.ring_step", my_ring_step)

# %% [markdown] tags=["shared", "questions"]
# ## Five questions
#
# Choose an answer to see whether it is right, and why.
#
# **1.** A ring grows from 8 to 64 devices; model and batch stay the same. How much does
# each device send in an all-reduce?
#
# <details><summary>Eight times as much.</summary>
#
# **No.** Tempting, because there are so many more to inform. But each sends to its
# neighbour only, and the parts become smaller as the steps become more.
#
# </details>
# <details><summary>Hardly more.</summary>
#
# **Right.** It sends $2(n-1)/n$ of a gradient: close to two, for any large ring. What
# grows is the number of steps.
#
# </details>
# <details><summary>An eighth: it has an eighth of the texts.</summary>
#
# **No.** Its *computation* is an eighth. The gradient has a number for each weight,
# however few texts it comes from.
#
# </details>
#
# **2.** Weights are sharded among four devices, as in FSDP. Which weights does a device
# use when it computes a block?
#
# <details><summary>A quarter of the weights, for all texts.</summary>
#
# **No.** That is tensor parallel, where activations travel. In FSDP the quarter is only
# what a device *keeps*.
#
# </details>
# <details><summary>A quarter of the weights, for a quarter of the texts.</summary>
#
# **No.** It seems so, as both are divided. But then no text would ever meet three
# quarters of the weights.
#
# </details>
# <details><summary>All weights of the block, for a quarter of the texts.</summary>
#
# **Right.** They are gathered before the block and dropped after it. So computing is as
# in data parallel, and only keeping is shared.
#
# </details>
#
# **3.** Four devices take four times the batch, and an update takes as long as on one.
# Is the training four times as fast?
#
# <details><summary>Yes: it sees four times as many texts a second.</summary>
#
# **No.** That is true, but what counts is the time to a given loss, and in a larger
# batch each text teaches less.
#
# </details>
# <details><summary>If a quarter of the updates is enough.</summary>
#
# **Right.** Up to a certain size, four times the batch (with a new learning rate) needs
# nearly a quarter of the updates. Beyond it, the gradient is precise enough already.
#
# </details>
# <details><summary>No: an update takes as long as before.</summary>
#
# **No.** Tempting, because no update is faster. But gradients are less noisy, and
# usually fewer updates are needed.
#
# </details>
#
# **4.** A data-parallel run has 64 GPUs, and one of them computes half as fast as the
# others. How long does an update take?
#
# <details><summary>About twice as long.</summary>
#
# **Right.** The sum is ready when the last part has arrived, so all wait for the
# slowest. Large clusters search for slow machines.
#
# </details>
# <details><summary>A little longer: the speeds average out.</summary>
#
# **No.** Work would average out if it moved to the fast ones. Here each has a fixed
# share of the batch.
#
# </details>
# <details><summary>As long as before: its part comes one update later.</summary>
#
# **No.** There are methods that allow this, called asynchronous. An all-reduce does
# not: it has no sum before it has all parts.
#
# </details>
#
# **5.** A training with Adam and warm-up resumes from a file with the weights alone.
# What differs from a run that was never stopped?
#
# <details><summary>Nothing: the weights are the model.</summary>
#
# **No.** They are all that you need to *use* it. An update also needs the averages, and
# the schedule its count.
#
# </details>
# <details><summary>The learning rate: the schedule starts at warm-up.</summary>
#
# **No.** So it does, but that is half of it. Adam's averages of the gradients are lost,
# too.
#
# </details>
# <details><summary>The averages start at zero, the schedule at warm-up.</summary>
#
# **Right.** The first steps follow single batches instead of many, at the learning
# rates of the beginning. So the run takes another way.
#
# </details>

# %% [markdown] tags=["shared"]
# ## Key points
#
# * **Data parallel** first: the same losses, a share of the time, one all-reduce.
# * **Sharded**, if weights, gradients and averages do not fit: a share of the memory,
#   more traffic, still the same losses.
# * **Tensor parallel**, inside a host, if a single layer is too large or too slow.
# * However many devices there are, each sends the whole gradient or more, and computes
#   less of a given batch. So more devices need larger batches, and these another
#   learning rate.
# * Kill a process of yours before the cluster does.

# %% [markdown] tags=["torch"]
# This is the last chapter. What differs between the frameworks is collected on the page
# [JAX and PyTorch compared](../book/comparison.md).
