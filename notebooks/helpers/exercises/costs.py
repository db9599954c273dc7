"""Exercises of the chapter *costs*."""
