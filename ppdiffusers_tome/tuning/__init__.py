"""Settings found by generating images with them."""
