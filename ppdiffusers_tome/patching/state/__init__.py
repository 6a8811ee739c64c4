"""The state of a model with ToMe and of its calls.

A ``DenoiserState`` lasts as long as ToMe is applied, a ``PipelineCall`` and its ``Denoising`` for an image, a
``DenoiserCall`` for a call of the denoiser, which knows its ``Moment``, a ``BlockCall`` for one of a block, and a
``PointCall`` for one of a merge point. The ``CallStack`` of a thread has those that run.
"""
