"""ComfyUI loads this folder as custom nodes: copy it or link to it in ``ComfyUI/custom_nodes``. See README.md."""

try:
    import ppdiffusers_tome  # noqa: F401  (also gives pipelines their methods)
except ImportError:
    print("The nodes for token merging are missing, as ppdiffusers_tome is not installed in ComfyUI's Python: "
          "README.md beside this file says how to install it.")  # fmt: skip
    NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = {}, {}
else:
    from .bundled_model import PaddleBundledModelLoader
    from .token_merging import PaddleTokenMerging

    NODE_CLASS_MAPPINGS = {
        "PaddleBundledModelLoader": PaddleBundledModelLoader,
        "PaddleTokenMerging": PaddleTokenMerging,
    }
    NODE_DISPLAY_NAME_MAPPINGS = {
        "PaddleBundledModelLoader": "Paddle Bundled Model Loader (ToMe)",
        "PaddleTokenMerging": "Paddle Token Merging (ToMe)",
    }

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
