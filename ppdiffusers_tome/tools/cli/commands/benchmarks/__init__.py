"""The benchmarks of the program, a file each."""
