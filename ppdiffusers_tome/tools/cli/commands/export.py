"""``ppdiffusers-tome export``: a merging pipeline as static programs for deployment."""

from __future__ import annotations

import argparse

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.export.folder import TOLERANCE, require_exportable, require_folder
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.tools.console.output import log, print_line, quiet_libraries
from ppdiffusers_tome.tools.console.parsing import refuse_options
from ppdiffusers_tome.tools.generation import model_loader
from ppdiffusers_tome.tools.generation.arguments import (
    add_controlnet_argument,
    add_model_argument,
    add_output_arguments,
    add_size_arguments,
    add_tome_arguments,
)
from ppdiffusers_tome.tools.generation.model_sources import ModelSource, find_controlnet, find_model
from ppdiffusers_tome.tools.generation.settings import check_sizes, parse_tome_config, refuse_without_merging

HELP = "Write a pipeline as static programs for deployment, merging included, and check them by running them."
EXAMPLES = """writes what ppdiffusers' PaddleInferStableDiffusion*Pipeline reads, tome.json (the settings, for --config)
and export.json (sizes, settings and the difference from the model). The programs take one height and width; the batch
is dynamic unless --rows fixes it. Every program is run before it is moved to the output. --overwrite replaces an
earlier export; a folder with other files is refused.

  ppdiffusers-tome export --model runwayml/stable-diffusion-v1-5 --height 768 --width 768 --rows 2
  ppdiffusers-tome export --controlnet controlnet --ratio 0.7 --output outputs/with-edges
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is exported")
    add_model_argument(group)
    add_controlnet_argument(group)
    add_size_arguments(group)
    group.add_argument("--rows", type=int, metavar="N",
                       help="rows of the UNet's batch, two for each image with guidance (default: any number)")
    group.add_argument("--tolerance", type=float, default=TOLERANCE, metavar="X",
                       help=f"largest difference from the model (default: {TOLERANCE:g})")
    add_tome_arguments(parser, ratio=True)
    add_output_arguments(parser)


def run(args: argparse.Namespace) -> None:
    check_sizes(args)
    refuse_options(args, ["--reuse-steps"], "has no effect in a program, which keeps nothing between calls; omit it")
    if args.rows is not None and args.rows < 1:
        raise UserError(f"--rows {args.rows} must be 1 or more; 2 is one image with guidance")
    if not args.tolerance > 0:
        raise UserError(f"--tolerance {args.tolerance} must be above 0; 0.0001 is usual")
    model = find_model(args.model, trusts_code=args.trust_model_code)
    config = parse_tome_config(args, args.ratio)
    refuse_without_merging(args, [config])
    require_exportable(config)
    controlnet = None if args.controlnet is None else find_controlnet(args.controlnet)
    require_folder(args.output, overwrite=args.overwrite)
    with quiet_libraries():
        _export(args, model, controlnet, config)


def _export(args: argparse.Namespace, model: ModelSource, controlnet: ModelSource | None, config: ToMeConfig) -> None:
    from ppdiffusers_tome.api import apply_tome
    from ppdiffusers_tome.export.pipelines import export_pipeline
    from ppdiffusers_tome.tools.generation.sampling import get_native_size

    pipe = model_loader.load_pipeline(model, controlnet)
    pipe.disable_xformers_memory_efficient_attention()  # its operators have no place in a program
    if config.ratio != 0:
        apply_tome(pipe, config)
    height, width = get_native_size(pipe)
    metadata = {"model": model.label, "controlnet": None if controlnet is None else controlnet.label}
    log("writing the programs ...")
    exported = export_pipeline(
        pipe, args.output, height=args.height or height, width=args.width or width, rows=args.rows,
        overwrite=args.overwrite, tolerance=args.tolerance, metadata=metadata,
    )  # fmt: skip
    for component in exported:
        files = ", ".join(component.files)
        print_line(f"{component.name}: {files}, at most {component.difference:.1e} from the model")
    print_line(str(args.output))
