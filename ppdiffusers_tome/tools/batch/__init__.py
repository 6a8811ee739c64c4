"""Images from a file of prompts."""
