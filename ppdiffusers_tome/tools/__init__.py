"""The command line, the page and what they share. Nothing outside imports it, but ``tune`` and the program."""
