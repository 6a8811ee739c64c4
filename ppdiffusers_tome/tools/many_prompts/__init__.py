"""Pictures from a file of prompts: read it, form batches, draw them on one rank or many, and go on after any stop.

``prompts`` reads the file, ``batches`` says which lines are drawn together, ``folder`` knows what is finished,
``ranks`` divides the batches over the processes of Paddle's launcher, and ``share`` draws what falls to one of them.
"""
