"""The packages that commands need, which the extra ``cli`` installs."""

from importlib.util import find_spec

from ppdiffusers_tome.errors import UserError

MODULES = ("matplotlib", "packaging", "PIL", "psutil", "skimage", "tqdm")


def require_modules(command: str) -> None:
    """Raise a ``UserError`` if a package that commands need is missing."""
    missing = [module for module in MODULES if find_spec(module) is None]
    if missing:
        raise UserError(
            f"{command} needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
            f'pip install ".[cli]" in a clone of the repository'
        )
