"""Custom nodes for ComfyUI: link this folder into ``ComfyUI/custom_nodes``. See README.md."""

try:
    import ppdiffusers_tome  # noqa: F401  (adds apply_tome to pipelines)
except ImportError:
    print("The nodes for token merging are missing because ppdiffusers_tome is not installed in ComfyUI's Python: "
          "see README.md of these nodes.")  # fmt: skip
    NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS = {}, {}
else:
    from .photographs_model import PaddlePhotographsLoader
    from .token_merging import PaddleTokenMerging

    NODE_CLASS_MAPPINGS = {
        "PaddlePhotographsLoader": PaddlePhotographsLoader,
        "PaddleTokenMerging": PaddleTokenMerging,
    }
    NODE_DISPLAY_NAME_MAPPINGS = {
        "PaddlePhotographsLoader": "Paddle Photographs Loader (ToMe)",
        "PaddleTokenMerging": "Paddle Token Merging (ToMe)",
    }

__all__ = ["NODE_CLASS_MAPPINGS", "NODE_DISPLAY_NAME_MAPPINGS"]
