"""Overrides of a denoiser, its blocks, their merge points, and what is inside of attention."""
