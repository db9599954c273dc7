"""What several pages need; each module says in one line what it is for.

shapes
    Check the shape of an array of any framework; fit a mask to the weights.
checks
    Refuse sizes, rates and names that make no sense, with one sentence.
reference
    Attention, norms, positions, block and predictor in NumPy float64: the answer
    both frameworks are held to.
settings
    One frozen dataclass per task: sizes, steps, seed, bounds; the twins share it.
schedules
    Warm-up and decay as functions of the step, framework-free.
sequences
    Reverse task: seeded NumPy data and batches.
sets
    Anomaly task: seeded sets with an odd one, from any features and labels.
photos
    CIFAR-10 and CIFAR-100 as one file each, their ResNet34 features as another.
download
    A file from the first address that has it: resumed, checked, whole or not at all.
runs
    A training in a folder: resumed after a kill, found when finished, seen in
    TensorBoard.
twin
    The same training in the other framework, in a process of its own.
weights
    One safetensors file that both frameworks read and write.
plots
    NumPy in, figure out, drawn by seaborn; never shows, never computes.
viewer
    Attention maps to touch, as the output of a cell: HTML that needs no kernel.
model_jax, model_torch
    The classes as they were built on the pages, for later pages.
train_jax, train_torch
    ``fit`` and ``evaluate``: same names, same arguments, same order.

This file imports nothing, so a JAX page never loads torch and a PyTorch page never
loads JAX.
"""
