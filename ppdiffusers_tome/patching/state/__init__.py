"""The state of a denoiser with ToMe, and of the calls of pipelines, denoisers, blocks and merge points."""
