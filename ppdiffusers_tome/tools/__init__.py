"""Whatever a person runs. Nothing outside this folder imports it."""
