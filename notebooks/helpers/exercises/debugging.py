"""Exercises of the chapter *debugging*."""
