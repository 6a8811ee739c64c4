"""Seconds, memory and similarity of images, and their files."""
