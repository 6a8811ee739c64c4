"""Pictures from a file of prompts: read it, form batches, draw them on one rank or many, and resume after any stop.

``prompts`` reads the file, ``line`` checks each of its lines, ``batches`` says which are drawn together, ``folder``
knows what is finished and ``preparing`` finds out, ``ranks`` divides the batches over the processes of Paddle's
launcher, ``shard`` draws what falls to one of them with ``line_pipeline``, and ``drawing`` is all of it in order.
"""
