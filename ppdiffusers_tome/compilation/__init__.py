"""Models compiled by OpenVINO as programs for CPUs, merging included."""
