"""Exercises of the chapter *decoder*."""
