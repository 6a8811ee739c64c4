"""Sheets of images, and images of merged tokens."""
