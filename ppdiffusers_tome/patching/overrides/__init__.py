"""Overrides, from outside in: ``denoiser``, ``stacks``, ``block``, ``merge``, and ``attention`` within."""
