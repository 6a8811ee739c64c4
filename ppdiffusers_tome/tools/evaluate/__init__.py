"""Speed, memory and similarity of many images, generated with several configurations of token merging."""
