"""Settings of token merging: checked, combined with presets, read and written. Knows no Paddle."""
