"""Settings of token merging and their presets. Needs no Paddle."""
