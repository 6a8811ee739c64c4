"""What merges in which pipelines and models, and what that is going to save."""
