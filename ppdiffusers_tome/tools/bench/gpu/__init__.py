"""What merging costs on a GPU, as far as that can be told without one: operators, bytes, a roofline."""
