"""Exercises of the chapter *warmup*."""
