"""The results of a run, which resumes from them. Imports no Paddle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.files import write_text

_MAX_CHARACTERS = 60  # of two values in an error


class Ledger:
    """Results by key, in memory and as lines of JSON.

    A key is any value that JSON can hold, such as ``["a cat", 0]``; so is a result, which may be infinite.

    Args:
        path: the file; it is written with the first result.
        identity: what all results of the file have in common, such as the model and the machine; those of an existing
            file must match.
        overwrite: start over and forget the results of the file.

    Raises:
        UserError: the file has another identity, or is no ledger.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path, self._identity = path, identity
        if overwrite:
            path.unlink(missing_ok=True)  # at once, as new images may follow and no new result
        self._results = read_results(path, identity)

    def __contains__(self, key: Any) -> bool:
        return json.dumps(key) in self._results

    def __getitem__(self, key: Any) -> Any:
        return self._results[json.dumps(key)]

    def add(self, key: Any, result: Any) -> None:
        """Add a result; it is on the disk when this returns."""
        self._results[json.dumps(key)] = result
        lines = [{"identity": self._identity}]
        lines += [{"key": json.loads(key), "result": result} for key, result in self._results.items()]
        write_text(self.path, "".join(f"{json.dumps(line)}\n" for line in lines))


def read_results(path: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Read the results of a ledger; refuse those of another identity."""
    if not path.exists():
        return {}
    try:
        first, *lines = map(json.loads, path.read_text().splitlines())
        before = dict(first["identity"])
        results = {json.dumps(line["key"]): line["result"] for line in lines}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"give another --output, or --overwrite to start over: {path} is no file of results of this program"
        ) from error
    for name, value in json.loads(json.dumps(identity)).items():
        if (old := before.get(name)) != value:
            is_short = len(f"{old}{value}") <= _MAX_CHARACTERS
            differs = f"{name} {old}, and this run has {value}" if is_short else f"other {name.replace('_', ' ')}"
            raise UserError(f"give another --output, or --overwrite to start over: {path} was measured with {differs}")
    return results
