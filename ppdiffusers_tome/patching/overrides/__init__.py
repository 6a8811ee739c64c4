"""Objects that run in place of methods of a model's layers while ToMe is applied."""
