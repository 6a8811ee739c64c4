"""Fewer keys and values than queries: all tokens ask, and what they attend to is chosen, pooled or merged."""
