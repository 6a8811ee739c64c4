"""What a result is: seconds, bytes, similarity to the unmerged picture; and the files that keep results."""
