"""Whatever a person runs. Nothing outside imports it, but the package's face: ``tune`` and the program."""
