"""Computing the results that a ledger lacks, job by job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ppdiffusers_tome.tools.measure.ledger import Ledger


@dataclass(frozen=True)
class Job:
    """Results that share a loaded model or a reference image.

    Attributes:
        name: for the progress bar.
        keys: of the results, as for ``Ledger``.
        run: computes the results of the keys that it is given, a part of ``keys`` in their order, and yields each key
            with its result at once. It may omit keys; the next run tries these again.
    """

    name: str
    keys: Sequence[Any]
    run: Callable[[list[Any]], Iterator[tuple[Any, Any]]]


def run_jobs(
    jobs: Iterable[Job], ledger: Ledger, *, description: str, is_done: Callable[[Any], bool] | None = None
) -> None:
    """Run jobs and add each result to the ledger at once.

    Args:
        jobs: in their order; a job whose keys are all done does not run.
        ledger: receives the results.
        description: of the results, in the plural, for the progress bar.
        is_done: tells whether a key needs no result any more; by default it is in the ledger.
    """
    from tqdm import tqdm

    is_done = is_done or ledger.__contains__
    missing = [(job, [key for key in job.keys if not is_done(key)]) for job in jobs]
    with tqdm(total=sum(len(keys) for _, keys in missing), desc=description, position=0, disable=None) as bar:
        for job, keys in missing:
            if keys:
                bar.set_postfix_str(job.name)
                for key, result in job.run(keys):
                    ledger.add(key, result)
                    bar.update()
