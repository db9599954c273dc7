"""The data of the chapters, one file for each: seeded NumPy arrays."""
