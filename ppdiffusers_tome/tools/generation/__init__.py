"""From the name of a model and a prompt to an image."""
