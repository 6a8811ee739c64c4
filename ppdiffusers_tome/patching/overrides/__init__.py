"""Overrides of denoisers, blocks, merge points and layers in attention."""
