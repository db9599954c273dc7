"""The trainings of the book against the usual way of writing them.

``run``          the command: pairs of measurements, the table, the files in results/
``measure``      one measurement, in a process of its own
``tasks``        settings, data and batches of the two tasks, in NumPy
``usual``        what a tutorial has around its loop: data sets, loaders, the log
``usual_jax``, ``usual_torch``     the loops of a tutorial
``losses_jax``, ``losses_torch``   what both ways minimise
"""
