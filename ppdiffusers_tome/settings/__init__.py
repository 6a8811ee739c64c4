"""Settings of token merging and their presets. Needs no Paddle, but for ``reducer``."""
