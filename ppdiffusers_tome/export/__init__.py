"""Export of merging pipelines as static programs."""
