"""The state of a model with ToMe, and of each call of it."""
