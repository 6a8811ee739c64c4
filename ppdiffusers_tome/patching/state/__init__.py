"""One call of a pipeline, of a denoiser and of a block: made when it begins, handed on, dropped when it ends."""
