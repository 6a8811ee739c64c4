"""Token merging on models: blocks, overrides of methods, and the state of calls."""
