"""What is said on a terminal: lines, tables, pages of results; and how command lines are read."""
