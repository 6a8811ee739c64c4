"""Merging put on models: where in them, by which hooks, and what a call of a denoiser hands to its blocks."""
