"""Exported pipelines and programs, loaded and run."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from ppdiffusers import PaddleInferRuntimeModel

from ppdiffusers_tome.cpu.process import count_threads
from ppdiffusers_tome.errors import ToMeValueError
from ppdiffusers_tome.export.folder import EXPORT, INDEX, PROGRAM, PROGRAM_SUFFIXES, read_export

_WEIGHTS_SUFFIX = ".pdiparams"
_LOCK = threading.Lock()
_REPLACED: list[Callable[..., None]] = []  # Paddle's function, once for each call that replaces it


def load_exported(folder: str | Path) -> Any:
    """Load an export of ``export_pipeline`` into ppdiffusers' deploy pipeline.

    The pipeline generates images of the exported size, which is the default of its ``height`` and ``width``, and
    refuses another size with a ``ToMeValueError``. On a CPU, where Paddle refuses the ``paddle.device.synchronize()``
    after its last step, that returns at once while a call runs.

    The deploy pipeline's own ``from_pretrained`` loads only what Paddle 2 exported, on Paddle 3: it does not know the
    names of Paddle 3's programs, turns on oneDNN, with which no UNet of Paddle 3 runs, and ends the process on Paddle
    2.6.2 (see ``Program``).

    Args:
        folder: the folder of an export.

    Returns:
        A ``PaddleInferStableDiffusionPipeline`` or ``PaddleInferStableDiffusionControlNetPipeline``.

    Raises:
        ToMeValueError: the folder holds no export, or an incomplete one.
        OSError: a file cannot be read.
    """
    import ppdiffusers

    folder = Path(folder)
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ToMeValueError(f"{folder / INDEX} cannot be read ({error}); export the pipeline again") from error
    index = index if isinstance(index, dict) else {}
    programs = {
        name: load_program(folder / name)
        for name, value in index.items() if isinstance(value, list) and value[-1:] == ["PaddleInferRuntimeModel"]
    }  # fmt: skip
    deploy_class = getattr(ppdiffusers, str(index.get("_class_name")), None)
    if not programs or deploy_class is None:
        raise ToMeValueError(f"{folder / INDEX} describes no exported pipeline; give the folder of an export")
    pipe = deploy_class.from_pretrained(str(folder), **programs)
    pipe.__class__ = type(type(pipe).__name__, (_ExportedPipeline, type(pipe)), {})
    export = read_export(folder)
    if export is not None:  # ppdiffusers' own scripts write none
        try:
            pipe.exported_size = (export["height"], export["width"])
            for component in export["components"]:
                shapes = {name: entry["shape"] for name, entry in component["inputs"].items()}
                programs[component["name"]].input_shapes = shapes
        except (KeyError, TypeError, AttributeError) as error:
            raise ToMeValueError(f"{folder / EXPORT} describes no export; export the pipeline again") from error
    return pipe


class _ExportedPipeline:
    """A deploy pipeline for one size of images, on a CPU too."""

    exported_size: tuple[int, int] | None = None  # height and width in pixels

    def __call__(
        self, prompt: Any = None, height: int | None = None, width: int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Generate images; the arguments are those of the deploy pipeline.

        Raises:
            ToMeValueError: another size is given.
        """
        given, exported = (height, width), self.exported_size
        height, width = given if exported is None else exported
        if any(size not in (None, expected) for size, expected in zip(given, (height, width), strict=True)):
            raise ToMeValueError(
                f"height={given[0]}, width={given[1]} cannot be generated: this pipeline was exported for "
                f"height={height}, width={width} alone, as the size decides how many tokens merge; omit both, or "
                "export the pipeline again for this size"
            )
        with _skip_synchronize() if paddle.get_device() == "cpu" else nullcontext():
            return super().__call__(prompt, height, width, *args, **kwargs)  # type: ignore[misc]


@contextmanager
def _skip_synchronize() -> Iterator[None]:
    """Have ``paddle.device.synchronize()`` return at once while calls of any thread run."""
    with _LOCK:
        synchronize = _REPLACED[0] if _REPLACED else paddle.device.synchronize
        _REPLACED.append(synchronize)
        paddle.device.synchronize = lambda device=None: None if device is None else synchronize(device)
    try:
        yield
    finally:
        with _LOCK:
            _REPLACED.pop()
            if not _REPLACED:
                paddle.device.synchronize = synchronize


class Program(PaddleInferRuntimeModel):
    """ppdiffusers' runtime model, with inputs copied through Paddle Inference's handles.

    ppdiffusers passes tensors to the predictor, which ends the process on Paddle 2.6.2, whatever the model.
    """

    # By name, None for dynamic dimensions; empty if unknown, as Paddle Inference does not report them.
    input_shapes: Mapping[str, Sequence[int | None]] = {}

    def __call__(self, **inputs: Any) -> list[paddle.Tensor]:
        """Run the program with its inputs by name; ignore others.

        They may be numbers of any type.

        Raises:
            ToMeValueError: an input has another shape than the program, which would fail in a kernel.
        """
        for name in self.model.get_input_names():
            dtype: Any = "int64" if name == "input_ids" else "float32"
            value = inputs[name].astype(dtype) if isinstance(inputs[name], paddle.Tensor) else inputs[name]
            value = np.asarray(value, dtype)
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
