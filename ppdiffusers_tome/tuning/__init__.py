"""Search for settings by generating images with them."""
