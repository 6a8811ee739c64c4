"""Pictures from a file of prompts: read it, form batches, draw them on one rank or many, and resume after any stop.

A file may have millions of lines, so all is done a chunk at a time: lines whose pictures share a folder. ``prompts``
reads a piece of the file (``entries`` its formats) and ``line`` checks each of its lines; ``finding`` finds the chunks
of the whole, of which ``chunks`` keeps an index. ``folder`` knows what is finished in a chunk's folder; ``preparing``
finds that out, by ``looking`` where it must. ``batches`` says which lines are drawn together, ``ranks`` divides the
batches over the processes of Paddle's launcher, ``share`` goes through the chunks on each, ``shard`` draws with
``line_pipeline``, and ``gathering`` makes one manifest of what all have drawn. ``drawing`` is all of it in order.
"""
