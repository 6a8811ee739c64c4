"""A base, such as a preset, with the settings given beside it: the one place where they meet. Knows no Paddle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import ToMeTypeError, ToMeValueError
from ppdiffusers_tome.settings.config import ToMeConfig
from ppdiffusers_tome.settings.presets import is_preset, presets
from ppdiffusers_tome.settings.types import describe_type, truncated_repr


def apply_overrides(base: ToMeConfig | str | Path | None, given: Mapping[str, Any]) -> ToMeConfig:
    """A base with the settings that were given in place of its own: what ``apply_tome`` and the command line run.

    Args:
        base: a config, the name of a preset, or a JSON file; None for the defaults.
        given: settings by name; each replaces that of the base, also where it is the default.

    Raises:
        ToMeTypeError, ToMeValueError: as for ``ToMeConfig``. Where what was given does not go together with the base,
            the error says what comes from where, and what to do.

    Example:
        >>> combined("quality", {"ratio": 0.5, "seed": 1}).summary
        'ratio 0.5, seed 1, method todo'
    """
    if base is None:
        return ToMeConfig(**given)
    if not isinstance(base, ToMeConfig | str | PathLike):
        raise ToMeTypeError(
            f"config={truncated_repr(base)} must be a ToMeConfig, the name of a preset ({', '.join(presets())}) or the path of "
            f"a JSON file of settings; got {describe_type(base)}"
        )
    config = base if isinstance(base, ToMeConfig) else ToMeConfig.named(base)
    try:
        return replace(config, **given)
    except (ToMeTypeError, ToMeValueError) as error:
        origin = "the config" if base is config else f"the preset {str(base)!r}" if is_preset(base) else str(base)
        beside = "config=" if base is config else f"config={str(base)!r}"
        raise type(error)(f"{error}{_at_odds(config, given, str(error), origin, beside)}") from None


def _at_odds(config: ToMeConfig, given: Mapping[str, Any], fault: str, origin: str, beside: str) -> str:
    """A sentence: what was given that does not go together with what of a base, and what to do.

    Empty where what was given is wrong whatever the base.
    """

    def refusal(settings: Mapping[str, Any]) -> str | None:
        try:
            ToMeConfig(**settings)
        except (ToMeTypeError, ToMeValueError) as error:
            return str(error)
        return None

    alone = refusal(given)
    if alone == fault:
        return ""
    held, usual = vars(config), vars(ToMeConfig())
    own = {name: value for name, value in held.items() if name not in given and value != usual[name]}
    # As few of what was given as must be left out, and as few of the base's own as must be given too.
    new = _fewest(given, lambda names: refusal({**given, **{name: held[name] for name in names}, **own}) is None)
    old = _fewest(own, lambda names: refusal({**own, **{name: usual[name] for name in names}, **given}) is None)
    said = (
        f". Here {_settings(given, new)} {'was' if len(new) == 1 else 'were'} given and {_settings(own, old)} "
        f"{'comes' if len(old) == 1 else 'come'} from {origin}"
    )
    if alone is not None:  # no defaults in place of the base's would help
        return said
    # A preset or config may have been given in place of a ratio, so there must be another way to give both.
    such = ", ".join(f"{name}={truncated_repr(usual[name])}" for name in old)
    return f"{said}; leave out {_listing(new)}, or give {_listing(old)} as well, such as {such} with {beside}"


def _fewest(names: Iterable[str], enough: Callable[[list[str]], bool]) -> list[str]:
    """The names, without those that are not needed for ``enough``."""
    kept = list(names)
    for name in names:
        fewer = [other for other in kept if other != name]
        if enough(fewer):
            kept = fewer
    return kept


def _settings(values: Mapping[str, Any], names: Sequence[str]) -> str:
    return _listing([f"{name}={truncated_repr(values[name])}" for name in names])


def _listing(words: Sequence[str]) -> str:
    """``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
