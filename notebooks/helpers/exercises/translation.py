"""Exercises of the chapter *translation*."""
