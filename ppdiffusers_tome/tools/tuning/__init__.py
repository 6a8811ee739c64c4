"""Settings chosen by trying them."""
