"""The benchmarks of the program: a file each, like a command's. What they share is in ``tools.bench``."""
