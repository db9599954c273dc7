"""Exercises of the chapter *data*."""
