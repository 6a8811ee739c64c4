"""Exported pipelines and programs, loaded and run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from ppdiffusers import PaddleInferRuntimeModel

from ppdiffusers_tome.cpu.process import count_threads
from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.export.folder import INDEX, PROGRAM, PROGRAM_SUFFIXES, PROGRAMS, read_export

_WEIGHTS_SUFFIX = ".pdiparams"


def load_exported(folder: str | Path) -> Any:
    """Load an export of ``export_pipeline`` into ppdiffusers' deploy pipeline.

    The pipeline generates images of the exported size, which is the default of its ``height`` and ``width``, and
    refuses another with a ``ToMeValueError``. On a CPU ``paddle.device.synchronize()``, which it calls after its last
    step, does nothing from now on; Paddle's own raises there.

    The deploy pipeline's own ``from_pretrained`` loads only what Paddle 2 exported, on Paddle 3: it does not know the
    names of Paddle 3's programs, turns on oneDNN, with which no UNet of Paddle 3 runs, and ends the process on Paddle
    2.6.2 (see ``Program``).

    Args:
        folder: the folder of an export.

    Returns:
        A ``PaddleInferStableDiffusionPipeline`` or ``PaddleInferStableDiffusionControlNetPipeline``.

    Raises:
        ToMeValueError: the folder holds no export, or an incomplete one.
    """
    import ppdiffusers

    folder = Path(folder)
    export = read_export(folder)
    if export is None or not (folder / INDEX).exists():
        raise ToMeValueError(f"{folder} holds no complete export; give the folder of one, or export the pipeline again")
    programs = {name: load_program(folder / name) for name in PROGRAMS}
    for component in export["components"]:
        shapes = {name: entry["shape"] for name, entry in component["inputs"].items()}
        programs[component["name"]].input_shapes = shapes
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    pipe = getattr(ppdiffusers, index["_class_name"]).from_pretrained(str(folder), **programs)
    pipe.__class__ = type(type(pipe).__name__, (_ExportedPipeline, type(pipe)), {})
    pipe.exported_size = (export["height"], export["width"])
    _allow_synchronize()
    return pipe


class _ExportedPipeline:
    """A deploy pipeline for one size of images."""

    exported_size: tuple[int, int]  # height and width in pixels

    def __call__(
        self, prompt: Any = None, height: int | None = None, width: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Generate images; the arguments are those of the deploy pipeline."""
        height, width = height or self.exported_size[0], width or self.exported_size[1]
        return super().__call__(prompt, height, width, *args, **kwargs)  # type: ignore[misc]


@cache
def _allow_synchronize() -> None:
    """Let ``paddle.device.synchronize()`` do nothing on a CPU."""
    synchronize = paddle.device.synchronize

    def synchronize_others(device: Any = None) -> None:
        if device is not None or paddle.get_device() != "cpu":
            synchronize(device)

    paddle.device.synchronize = synchronize_others


class Program(PaddleInferRuntimeModel):
    """ppdiffusers' runtime model, with inputs copied through Paddle Inference's handles.

    ppdiffusers passes tensors to the predictor, which ends the process on Paddle 2.6.2, whatever the model.
    """

    # By name, None for dynamic dimensions, as Paddle Inference does not report them; empty for a single program.
    input_shapes: Mapping[str, Sequence[int | None]] = {}

    def __call__(self, **inputs: Any) -> list[paddle.Tensor]:
        """Run the program with its inputs by name, of any type; ignore others.

        Raises:
            ToMeValueError: an input has another shape than the program, as of images of another size.
        """
        for name in self.model.get_input_names():
            value = inputs[name] if isinstance(inputs[name], paddle.Tensor) else paddle.to_tensor(inputs[name])
            value = value.astype("int64" if name == "input_ids" else "float32").numpy()
            value = value.reshape([1]) if name == "timestep" else value
            self._check_shape(name, value)
            self.model.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(value))
        self.model.run()
        outputs = (self.model.get_output_handle(name) for name in self.model.get_output_names())
        return [paddle.to_tensor(output.copy_to_cpu()) for output in outputs]

    def _check_shape(self, name: str, value: np.ndarray) -> None:
        expected = self.input_shapes.get(name, value.shape)
        pairs = zip(value.shape, expected, strict=False)
        if value.ndim != len(expected) or any(size not in (dim, None) for dim, size in pairs):
            shape = ", ".join("any" if size is None else str(size) for size in expected)
            raise ToMeValueError(
                f"the exported program takes {name} of shape [{shape}]; got {list(value.shape)}. Give images, latents "
                "and batches of the size in export.json, or export the pipeline again for this size"
            )


def load_program(folder: Path) -> Program:
    """Load an exported component of either Paddle into Paddle Inference.

    Raises:
        ToMeValueError: the folder has no program, or not its weights.
    """
    from paddle import inference

    names = [f"{PROGRAM}{suffix}" for suffix in PROGRAM_SUFFIXES if (folder / f"{PROGRAM}{suffix}").exists()]
    if not names or not (folder / f"{PROGRAM}{_WEIGHTS_SUFFIX}").exists():
        missing = _WEIGHTS_SUFFIX if names else " or ".join(PROGRAM_SUFFIXES)
        raise ToMeValueError(f"{folder} has no {PROGRAM}{missing}; export the pipeline again")
    config = inference.Config()
    config.disable_glog_info()
    config.disable_mkldnn()  # with oneDNN, a UNet that Paddle 3 exported does not run
    config.switch_ir_optim(True)
    device, _, index = paddle.get_device().partition(":")
    if device == "gpu":
        config.enable_use_gpu(256, int(index or 0))
    config.set_cpu_math_library_num_threads(count_threads())
    return Program.from_pretrained(str(folder), model_file_name=names[0], infer_configs=config)
