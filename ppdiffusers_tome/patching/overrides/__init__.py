"""Objects that run in place of methods of layers with ToMe."""
