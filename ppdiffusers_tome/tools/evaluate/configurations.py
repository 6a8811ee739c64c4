"""What is compared: the unmerged pipeline, the port at a ratio, ours with any settings. Knows no Paddle."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeError, UserError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.types import format_setting
from ppdiffusers_tome.tools.bench.variants import OURS, PORT

UNMERGED = "unmerged"
_EXAMPLE = '{"name": "half", "contender": "ours", "ratio": 0.5}'
# What the port can be asked for, of all settings.
PORT_SETTINGS = ("ratio", "max_downsample")
# The port merges in whole cells of 2x2 tokens; at coarser levels it fails on what is left over.
_PORT_MULTIPLE = 16


@dataclass(frozen=True)
class Configuration:
    """One of those that are compared.

    Attributes:
        name: in tables and on the plot; no two of an evaluation are called the same.
        contender: ``unmerged``, ``port`` or ``ours``.
        tome: its settings, of which the port knows ``PORT_SETTINGS``; None for the unmerged pipeline.
        family: what shares a line on the plot, such as one method at several ratios.
    """

    name: str
    contender: str
    tome: ToMeConfig | None
    family: str

    def apply(self, pipe: Any) -> None:
        """Apply it to a pipeline, in place of whichever is on it.

        Raises:
            NothingToMergeError: the pipeline has no block that merges with these settings.
        """
        from ppdiffusers_tome.api import apply_tome, remove_tome
        from ppdiffusers_tome.tools.bench.variants import apply_port

        remove_tome(pipe)
        if self.contender == PORT:
            assert self.tome is not None
            apply_port(pipe, self.tome.to_dict()["ratio"], self.tome.max_downsample)
        elif self.tome is not None:
            apply_tome(pipe, config=self.tome)

    def check_size(self, height: int, width: int) -> None:
        """It can run on pictures of this size.

        Raises:
            UserError: it cannot.
        """
        level = (self.tome.max_downsample or 1) if self.contender == PORT and self.tome else 1
        multiple = _PORT_MULTIPLE * level
        for name, pixels in (("height", height), ("width", width)):
            if level > 1 and pixels % multiple:
                raise UserError(
                    f"--{name} {pixels} must be a multiple of {multiple} for {self.name!r}: the port fails where level "
                    f"{level} is not a whole number of cells of 2x2 tokens"
                )

    def to_dict(self) -> dict[str, Any]:
        """As plain values, as JSON gives them back."""
        described = {
            "name": self.name, "contender": self.contender, "family": self.family,
            "tome": None if self.tome is None else self.tome.to_dict(),
        }  # fmt: skip
        return json.loads(json.dumps(described))


def unmerged() -> Configuration:
    """The pipeline as it is, which all others are compared with."""
    return Configuration(UNMERGED, UNMERGED, None, UNMERGED)


def ours(config: ToMeConfig, name: str | None = None, family: str | None = None) -> Configuration:
    """This package with some settings; called by what is not the default where no name is given."""
    return Configuration(name or _name(config, OURS), OURS, config, family or _family(config, OURS))


def port(
    ratio: float, max_downsample: int | None = None, name: str | None = None, family: str | None = None
) -> Configuration:
    """ppdiffusers' own port of tomesd.

    Raises:
        ToMeError: it cannot be asked for that.
    """
    config = ToMeConfig(ratio=ratio, max_downsample=max_downsample)
    if isinstance(config.to_dict()["ratio"], float):
        return Configuration(name or _name(config, PORT), PORT, config, family or _family(config, PORT))
    raise UserError(f"ratio={ratio!r} must be one number for the port, such as 0.5")


def from_files(paths: Iterable[str | Path]) -> list[Configuration]:
    """Ours with presets, or the settings of JSON files that ``ToMeConfig.save`` wrote, called by their stems.

    Raises:
        UserError: a file cannot be read or holds something else.
    """
    found = []
    for path in paths:
        try:
            found.append(ours(ToMeConfig.named(path), Path(path).stem))
        except ToMeError as error:
            raise UserError(f"--configs {error}") from error  # which begins with the path
    return found


def from_suite(path: Path) -> list[Configuration]:
    """The configurations of a file, a JSON object a line; blank lines do not count.

    ``name`` is needed; ``contender`` is ``ours`` or ``port``, ``ours`` where it is missing; ``family`` is as in
    ``Configuration``; everything else is a setting of ``ToMeConfig``.

    Raises:
        UserError: the file cannot be read, or a line of it is no configuration.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"--suite {path} cannot be read ({error}); give a file with a JSON object a line") from error
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                found.append(_from_line(json.loads(line)))
            except (ValueError, TypeError) as error:  # of JSON, and ToMe's own
                raise UserError(f"--suite {path}, line {number}: {error}") from error
    if not found:
        raise UserError(f"--suite {path} holds no configuration; write one per line, such as {_EXAMPLE}")
    return found


def _from_line(given: Any) -> Configuration:
    if not isinstance(given, dict):
        raise ValueError(f"got {type(given).__name__}, not an object such as {_EXAMPLE}")
    settings = dict(given)
    name, contender, family = settings.pop("name", None), settings.pop("contender", OURS), settings.pop("family", None)
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"name={name!r} must be what to call it in the table, as in {_EXAMPLE}")
    if family is not None and (not isinstance(family, str) or not family.strip()):
        raise ValueError(f"family={family!r} must be what to call its line on the plot, or be left out")
    if contender == OURS:
        return ours(ToMeConfig.from_dict(settings), name, family)
    if contender != PORT:
        raise ValueError(f"contender={contender!r} must be '{OURS}' or '{PORT}'; '{UNMERGED}' always runs")
    unknown = [setting for setting in settings if setting not in PORT_SETTINGS]
    if unknown:
        raise ValueError(f"the port has no {', '.join(unknown)}; of it {' and '.join(PORT_SETTINGS)} can be chosen")
    return port(settings.get("ratio", ToMeConfig().ratio), settings.get("max_downsample"), name, family)


def distinct(configurations: Iterable[Configuration], *, suite: bool = False) -> list[Configuration]:
    """The unmerged pipeline and then the configurations, each once.

    Args:
        configurations: in the order of the table.
        suite: whether they may come from ``--suite``, to be named in the error.

    Raises:
        UserError: two of them are called the same and are not.
    """
    found = {UNMERGED: unmerged()}
    for configuration in configurations:
        if found.setdefault(configuration.name, configuration) != configuration:
            where = "the file, or its name in --suite" if suite else "the file"
            taken = f", as {UNMERGED!r} is the pipeline without token merging" if configuration.name == UNMERGED else ""
            raise UserError(
                f"two different configurations are called {configuration.name!r}{taken}; rename one of them ({where})"
            )
    if len(found) == 1:
        raise UserError("nothing is to be compared with the unmerged pipeline; give --ratios, such as --ratios 0.5")
    return list(found.values())


def _name(config: ToMeConfig, contender: str) -> str:
    """``ours 0.5, tile 16``."""
    who, *settings = _described(config, contender)
    return ", ".join([f"{who} {format_setting(config.ratio)}", *settings])


def _family(config: ToMeConfig, contender: str) -> str:
    """``ours, tile 16``: the same at all ratios."""
    return ", ".join(_described(config, contender))


def _described(config: ToMeConfig, contender: str) -> list[str]:
    """The contender with its method, and every other setting that is not the default, but for ratio and seed."""
    usual = ToMeConfig().to_dict()
    other = {
        name: value for name, value in config.to_dict().items()
        if value != usual[name] and name not in ("ratio", "seed")
    }  # fmt: skip
    method = other.pop("method", None)
    return [contender if method is None else f"{contender} {method}", *map(_setting, other.items())]


def _setting(setting: tuple[str, Any]) -> str:
    name, value = setting
    return name if value is True else f"no {name}" if value is False else f"{name} {format_setting(value)}"
