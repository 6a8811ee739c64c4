"""Scripts that measure for our own pages and checks; the README of this folder lists them."""
