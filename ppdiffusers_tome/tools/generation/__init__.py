"""From a model's name and a prompt to a picture file."""
