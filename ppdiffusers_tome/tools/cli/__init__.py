"""The program ``ppdiffusers-tome``."""
