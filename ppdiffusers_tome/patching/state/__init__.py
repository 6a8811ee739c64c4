"""The state of a denoiser with ToMe and of its calls.

A ``PipelineCall`` has a ``Denoising`` for each denoiser, and that a ``Step`` at a time. A ``DenoiserCall`` is a call in
a step; it has a ``Plan`` for each layout of tokens, in each block a ``BlockCall``, and in that maybe a ``PointCall``.
"""
