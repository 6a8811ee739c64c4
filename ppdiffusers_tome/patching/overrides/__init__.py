"""What runs in place of layers, from outside in: ``denoiser``, ``block``, ``merge``, and ``attention`` within."""
