"""Speed, memory and similarity of images by several configurations."""
