"""Benchmarks of token merging, which ``ppdiffusers-tome bench`` runs."""
