"""Overrides, from outside in: ``denoiser``, ``block``, ``merge``, and ``attention`` within."""
