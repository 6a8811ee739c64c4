"""Plots, sheets of images, and images of merged tokens."""
