"""The hooks that ToMe puts on a model: what each of them tells the call, and takes from it. One file a kind of layer.

Merging needs only the input and output of a sublayer and the block's input. So no ``forward`` is copied or replaced:
whatever norm, processor, LoRA or GLIGEN a block holds goes on as before.
"""
