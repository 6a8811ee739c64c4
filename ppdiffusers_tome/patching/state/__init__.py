"""The state of a denoiser with ToMe and of its calls."""
