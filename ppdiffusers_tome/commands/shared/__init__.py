"""What several commands use: their arguments, the run of a pipeline with them, and what is quiet on the screen."""
