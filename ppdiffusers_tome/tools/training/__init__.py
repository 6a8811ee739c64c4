"""How the bundled model was made: a script a part, resumable; see docs/en/results/bundled-model.md."""
