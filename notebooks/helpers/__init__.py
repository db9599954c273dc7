"""What several pages need; each module says in one line what it is for.

shapes
    Check the shape of an array of any framework; copy it to NumPy.
checks
    Check sizes, settings, data and labels; errors name both values.
reference
    Attention, norms, positions, block and predictor in NumPy float64: the reference
    that both frameworks are compared with.
settings
    One frozen dataclass per task: sizes, steps, seed, bounds; the twins share it.
schedules
    Warm-up and decay as functions of the step, framework-free.
sequences
    Reverse task: seeded NumPy data and batches.
sets
    Anomaly task: seeded sets with an odd one, from any features and labels.
text
    Python's standard library as text, byte pairs, n-grams to compare a model with.
dates
    Dates in seven written forms, and in ISO's.
pictures
    Digits or photos with their labels in three parts; pictures moved by whole pixels.
photos
    CIFAR-10, CIFAR-100 or a folder of photos as one file, ResNet34 features as another.
picture_folder
    A folder of pictures, one folder for each class, as one array of small squares.
download
    Download a file from a mirror or its home: resumable, with a checked hash.
runs
    A training in a folder: resumed after a kill, reloaded when finished, seen in
    TensorBoard.
fingerprint
    Digests of arrays and of code, which identify a run.
twin
    The same training in the other framework, in a process of its own.
weights
    One safetensors file that both frameworks read and write.
plots
    NumPy in, figure out, drawn by seaborn.
prose
    Sentences with computed numbers, as Markdown output of a cell.
diagrams
    Architectures as drawings: boxes with the names of the code, shapes on the arrows.
viewer
    Interactive attention maps as the output of a cell: HTML that needs no kernel.
model_jax, model_torch
    The classes as they were built on the pages, for later pages.
train_jax, train_torch
    ``fit`` and ``evaluate``: same names, same arguments, same order.

This file imports nothing, so a JAX page never loads torch and a PyTorch page never
loads JAX.
"""
