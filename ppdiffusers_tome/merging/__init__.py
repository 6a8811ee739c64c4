"""Token merging on tensors: matching, merging and restoring. Knows no model."""
