"""Merging methods: who merges with whom. One file a method."""
