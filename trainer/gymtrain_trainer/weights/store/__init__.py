"""Versions of the weights on disk, and how pods fetch them."""
