"""What makes the most of a CPU, with token merging or without."""
