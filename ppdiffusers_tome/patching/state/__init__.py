"""The state of a model with ToMe and of its calls.

A ``DenoiserState`` lasts as long as ToMe is applied, a ``PipelineCall`` and its ``Denoising`` for an image, a
``DenoiserCall`` for a call of the denoiser, a ``BlockCall`` for one of a block. The ``CallStack`` of a thread has those
that run.
"""
