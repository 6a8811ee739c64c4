"""What is shown of pictures and results: tables, sheets of pictures, plots, VisualDL."""
