"""The command line, the page and what they share."""
