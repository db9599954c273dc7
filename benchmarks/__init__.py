"""Training and generation of the book against the usual ways of writing them.

``run``          the command: pairs of measurements, the table, the files in results/
``measure``      one training, in a process of its own
``tasks``        settings, data and batches of the trainings, in NumPy
``usual``        what a tutorial has around its loop: data sets, loaders, the log
``usual_jax``, ``usual_torch``     the loops of a tutorial
``losses_jax``, ``losses_torch``   what both ways minimise
``generation``   greedy generation in every way, in a process of its own
``generation_jax``, ``generation_torch``   those ways
"""
