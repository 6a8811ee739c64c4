"""Configurations to compare: unmerged, with fewer steps, ppdiffusers' port, and this package with settings.

Imports no Paddle.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import is_preset
from ppdiffusers_tome.settings.types import format_setting, truncated_repr
from ppdiffusers_tome.tools.measure.units import counted

UNMERGED, PORT, OURS = "unmerged", "port", "ours"
_PORT_SETTINGS = ("ratio", "max_downsample")
_EXAMPLE = '{"name": "half", "contender": "ours", "ratio": 0.5}'


@dataclass(frozen=True)
class Configuration:
    """One of the configurations that are compared.

    Attributes:
        name: unique in an evaluation.
        contender: ``unmerged``, ``port`` or ``ours``.
        tome: the settings, of which the port has ratio and max_downsample; None for the unmerged pipeline.
        family: configurations of one family share a line of the plot.
        steps: of the denoising, where they are fewer than those of all others.
    """

    name: str
    contender: str
    tome: ToMeConfig | None
    family: str
    steps: int | None = None

    def apply(self, pipe: Any) -> None:
        """Apply it to a pipeline, in place of the one before.

        Raises:
            NothingToMergeError: the pipeline has no block that merges with these settings.
        """
        from ppdiffusers_tome.api import apply_tome, remove_tome
        from ppdiffusers_tome.tools.bench.variants import apply_port

        remove_tome(pipe)  # which removes the port, too
        if self.tome is not None and self.contender == PORT:
            apply_port(pipe, self.tome.to_dict()["ratio"], self.tome.max_downsample)
        elif self.tome is not None:
            apply_tome(pipe, config=self.tome)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, equal to those that JSON restores."""
        tome = None if self.tome is None else self.tome.to_dict()
        return json.loads(json.dumps({**vars(self), "tome": tome}))


def unmerged() -> Configuration:
    """Return the unmerged pipeline, with which all others are compared."""
    return Configuration(UNMERGED, UNMERGED, None, UNMERGED)


def ours(config: ToMeConfig, name: str | None = None, family: str | None = None) -> Configuration:
    """Return this package with settings, by default named after them."""
    return _make_configuration(OURS, config, name, family)


def port(
    ratio: float, max_downsample: int | None = None, name: str | None = None, family: str | None = None
) -> Configuration:
    """Return ppdiffusers' own port of tomesd.

    Raises:
        ToMeError: it has no such setting.
    """
    config = ToMeConfig(ratio=ratio, max_downsample=max_downsample)
    if not isinstance(config.to_dict()["ratio"], float):
        raise UserError(f"ratio={ratio!r} must be one number for the port, such as 0.5")
    return _make_configuration(PORT, config, name, family)


def add_fewer_steps_argument(group: Any) -> None:
    """Add the unmerged pipeline with fewer steps."""
    group.add_argument("--fewer-steps", type=int, nargs="+", default=[], metavar="N",
                       help="also unmerged with so many steps, for the same time")


def make_fewer_steps(numbers: Iterable[int], steps: int) -> list[Configuration]:
    """Return the unmerged pipeline with each number of steps.

    Raises:
        UserError: a number is not below ``steps``, those of all others.
    """
    numbers = list(numbers)
    for number in numbers:
        if not 1 <= number < steps:
            raise UserError(f"--fewer-steps {number} must be at least 1 and below {steps}, the steps of all others")
    return [
        replace(unmerged(), name=counted(number, "step"), family="fewer steps", steps=number) for number in numbers
    ]


def read_settings_files(paths: Iterable[str]) -> list[Configuration]:
    """Read presets or JSON files of settings, named after their files.

    Raises:
        UserError: a file cannot be read or holds something else.
    """
    try:
        return [ours(ToMeConfig.named(path), Path(path).stem, path if is_preset(path) else None) for path in paths]
    except ToMeError as error:
        raise UserError(f"--configs {error}") from error  # which begins with the path


def read_suite(path: Path) -> list[Configuration]:
    """Read a file with one configuration per line, as docs/en/reference/file-formats.md describes it.

    Raises:
        UserError: the file cannot be read, or a line of it is no configuration.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"--suite {path} cannot be read ({error}); give a file with a JSON object per line") from error
    configurations = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                configurations.append(_parse_line(json.loads(line)))
            except (ValueError, TypeError, RecursionError) as error:  # of JSON, and ToMe's own
                raise UserError(f"--suite {path}, line {number}: {error}") from error
    if not configurations:
        raise UserError(f"--suite {path} holds no configuration; write one per line, such as {_EXAMPLE}")
    return configurations


def _parse_line(values: Any) -> Configuration:
    if not isinstance(values, dict):
        raise ValueError(f"got {type(values).__name__}, not an object such as {_EXAMPLE}")
    settings: dict[str, Any] = {"contender": OURS, "family": None, "name": None} | values
    name, contender, family = (settings.pop(key) for key in ("name", "contender", "family"))
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"name={truncated_repr(name)} must be a name for the table, as in {_EXAMPLE}")
    if family is not None and (not isinstance(family, str) or not family.strip()):
        raise ValueError(f"family={truncated_repr(family)} must be a name for a line of the plot, or missing")
    if contender == OURS:
        return ours(ToMeConfig.from_dict(settings), name, family)
    if contender != PORT:
        raise ValueError(
            f"contender={truncated_repr(contender)} must be '{OURS}' or '{PORT}'; '{UNMERGED}' always runs"
        )
    unknown = [setting for setting in settings if setting not in _PORT_SETTINGS]
    if unknown:
        raise ValueError(f"the port has no {', '.join(unknown)}; it has {' and '.join(_PORT_SETTINGS)}")
    return port(settings.get("ratio", ToMeConfig().ratio), settings.get("max_downsample"), name, family)


def check_names(configurations: Iterable[Configuration]) -> list[Configuration]:
    """Return the unmerged pipeline and the configurations, each once.

    Raises:
        UserError: two different ones have the same name, or there are none.
    """
    by_name = {UNMERGED: unmerged()}
    for configuration in configurations:
        if by_name.setdefault(configuration.name, configuration) != configuration:
            raise UserError(
                f"two different configurations are called {configuration.name!r}; rename one of the files of "
                "--configs, or its name in --suite"
            )
    if len(by_name) == 1:
        raise UserError("nothing is to be compared with the unmerged pipeline; give --ratios, such as --ratios 0.5")
    return list(by_name.values())


def _make_configuration(contender: str, config: ToMeConfig, name: str | None, family: str | None) -> Configuration:
    """Name the changed settings.

    ``ours tofu 0.5, tile 16`` is of the family ``ours tofu, tile 16``.
    """
    defaults = ToMeConfig().to_dict()
    changes = {setting: value for setting, value in config.to_dict().items() if value != defaults[setting]}
    words = [contender, *([changes["method"]] if "method" in changes else [])]
    settings = [
        setting if value is True else f"no {setting}" if value is False else f"{setting} {format_setting(value)}"
        for setting, value in changes.items() if setting not in ("ratio", "seed", "method")
    ]  # fmt: skip
    default_name = ", ".join([" ".join([*words, format_setting(config.ratio)]), *settings])
    return Configuration(name or default_name, contender, config, family or ", ".join([" ".join(words), *settings]))
