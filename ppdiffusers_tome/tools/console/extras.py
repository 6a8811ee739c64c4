"""The packages that commands need, by the extra that installs them."""

from importlib.util import find_spec

from ppdiffusers_tome.errors import UserError

_CLI = ("matplotlib", "packaging", "PIL", "psutil", "scipy", "skimage", "tqdm")
MODULES = {"": (), "cli": _CLI}


def require_extra(extra: str, command: str) -> None:
    """Raise a ``UserError`` if a package of an extra is missing."""
    missing = [module for module in MODULES[extra] if find_spec(module) is None]
    if missing:
        raise UserError(
            f"{command} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            f'pip install ".[{extra}]" in a clone of the repository'
        )
