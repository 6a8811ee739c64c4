"""Coverage of pipelines, estimates for one model, and the environment report."""
