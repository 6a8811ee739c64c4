"""Fewer keys and values than queries: every query is kept, keys and values are chosen, pooled or merged."""
