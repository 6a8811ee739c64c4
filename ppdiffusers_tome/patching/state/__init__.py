"""The state of a model with ToMe and of its calls."""
