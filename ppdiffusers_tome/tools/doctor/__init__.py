"""The report of what is installed, and whether it works."""
