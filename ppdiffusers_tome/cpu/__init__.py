"""Faster computation on a CPU, with token merging or without."""
