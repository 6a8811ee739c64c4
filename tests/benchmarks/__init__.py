"""Scripts that measure for our own pages and checks; see the README."""
