"""Exercises of the chapter *anomaly*."""
