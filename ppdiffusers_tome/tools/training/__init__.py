"""How the bundled model was made: a script a part, resumable; see docs/demo_model.md."""
