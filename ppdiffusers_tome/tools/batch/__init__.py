"""Generate images from a file of prompts: ``prompts_file`` reads it, ``run`` generates what is missing."""
