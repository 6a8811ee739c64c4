"""Generate images from a file of prompts, and resume after any stop.

``run`` does it in order: ``prompts_file`` reads the file, ``specs`` checks its lines and forms batches,
``output_folder`` knows what is finished, ``ranks`` divides the batches, ``generator`` generates them.
"""
