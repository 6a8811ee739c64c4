"""From the name of a model and a prompt to an image.

In the order of a command: ``arguments`` and ``prompts`` are asked for, ``models`` finds the model and ``model_files``
looks into its folder, ``checks`` makes ``settings`` of it all, ``loading`` loads a ``loaded_pipeline``, and
``sampling`` draws its images. All before ``loading`` import no Paddle, which takes seconds: what is mistyped is refused
at once.
"""
