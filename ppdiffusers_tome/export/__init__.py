"""Pipelines as static programs for deployment, merging included: checks, programs, whole pipelines, ONNX."""
