"""The report of what is installed, and whether it can be imported."""
