"""Exercises of the chapter *vision*."""
