"""What several pages need. Two rooms hold the same files with the same names:

jax, torch
    One file a chapter: ``attention``, ``encoder``, ``positions``, ``vision``,
    ``decoder``, ``generation``, ``translation``, ``today``, ``lora``, ``classifier``,
    ``masked``; ``fit``, ``evaluate``, losses in ``training``, how it multiplies in
    ``compute``; ``memory`` of training. ``from helpers.torch import LanguageModel, fit``.

Beside them stands what both share:

reference
    Attention, norms, positions and blocks in NumPy float64: the reference that both
    frameworks are compared with.
schedules
    Warm-up and decay as functions of the step.
data
    Seeded NumPy arrays: ``sequences`` to reverse, ``sets`` with an odd one, ``text``,
    ``byte_pairs``, ``ngrams``, ``dates``, ``lines`` of four languages, ``pictures``,
    ``photos`` and their features, ``vowels`` with gaps, ``reactions``; ``masking``. Our
    ``pretrained.safetensors``, and ``checkpoints`` of others: where they are; in
    ``published`` and ``bert``, names of weights.
show
    ``prose`` with computed numbers, ``plots``, ``patches`` of pictures, ``viewer`` for
    attention maps to touch, and ``drawing``: an architecture as SVG, by name.
exercises
    ``check`` tries a function from a blank cell, and names its mistake; one file a
    chapter holds references and known mistakes: ``attention``, ``encoder``,
    ``positions``, ``reverse``, ``warmup``, ``anomaly``, ``vision``, ``decoder``,
    ``translation``, ``today``, ``costs``, ``data``, ``debugging``.
engine
    What a reader may ignore: ``settings`` of each task and ``set_settings``,
    ``checks``, ``arguments``, ``shapes``, ``nested`` arrays, ``weights`` in one file
    for both frameworks, or ``adapters``, ``language_models`` with their vocabulary,
    ``runs`` that are kept under a ``fingerprint`` of their code, ``processes`` that
    train together, ``jobs`` that start them, the ``twin``: a training in the other
    framework, and what is ``mine``: definitions from blank notebooks.

This file imports nothing: no page loads both frameworks (but ``reactions`` torch).
"""
