"""What all commands share: arguments, settings made of them, and what is said on the terminal."""
