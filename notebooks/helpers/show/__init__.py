"""Sentences, figures, drawings and attention maps to touch; NumPy arrays in."""
