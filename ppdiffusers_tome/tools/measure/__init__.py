"""Seconds, memory and similarity of images, and the files that keep such results."""
