"""Overrides, from outside in: those of ``denoiser``, ``block`` and ``merge``, and of ``attention`` within."""
