"""Token merging on models: blocks, overrides and the state of calls."""
