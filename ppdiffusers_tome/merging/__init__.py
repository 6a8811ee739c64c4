"""Token merging on tensors: which tokens merge into which, and there and back. Knows no model."""
