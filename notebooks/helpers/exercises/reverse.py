"""Exercises of the chapter *reverse*."""
