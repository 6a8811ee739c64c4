"""One setting, measured in a process of its own, so that running out of memory ends this process and no more.

``python -m ppdiffusers_tome.tools.bench.worker`` reads its task as one line of JSON and answers in lines of JSON:
``{"on": ...}`` first, ``{"running": name}`` before every run, and what it found.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.plan import Entry, Plan, Setting
from ppdiffusers_tome.tools.measuring.clock import synchronize
from ppdiffusers_tome.tools.measuring.out_of_memory import die_first, ran_out_of_memory

OUT_OF_MEMORY = 77  # the exit status that says so
Say = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """What one worker measures.

    Attributes:
        plan, setting: what is loaded.
        entries: who is run.
        rounds: the numbers of the rounds in which all entries take turns; none to measure memory instead.
    """

    plan: Plan
    setting: Setting
    entries: tuple[Entry, ...]
    rounds: tuple[int, ...]

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "plan": self.plan.to_dict()})

    @classmethod
    def from_json(cls, text: str) -> Task:
        given = json.loads(text)
        entries = tuple(Entry(**entry) for entry in given["entries"])
        return cls(Plan.from_dict(given["plan"]), Setting(**given["setting"]), entries, tuple(given["rounds"]))


def work_on(task: Task, say: Say) -> None:
    """Do a task; what is found is said as it is found."""
    from ppdiffusers_tome.tools.bench.overhead import measured_on
    from ppdiffusers_tome.tools.bench.work import load_work
    from ppdiffusers_tome.tools.measuring.measure import memory_meaning

    say({"on": {**measured_on(), "memory": memory_meaning()}})
    work = load_work(task.plan, task.setting)
    (_time if task.rounds else _measure_memory)(task, work, say)


def _time(task: Task, work: Any, say: Say) -> None:
    """Entries take turns, so that what slows the machine down for a while slows all of them; who begins changes."""
    from ppdiffusers_tome.tools.bench.contenders import put_on

    plan, entries = task.plan, task.entries

    def run(entry: Entry, steps: int) -> float:
        say({"running": entry.name})
        put_on(work.model_or_pipe, entry.contender, entry.ratio, plan.max_downsample)
        return _seconds(lambda: work.run(steps))

    for entry in entries:
        run(entry, 1)
    for number in task.rounds:
        first = number % len(entries)
        turns = [*entries[first:], *entries[:first]]
        seconds = {entry.name: run(entry, plan.steps) / work.parts for entry in turns}
        say({"round": number, "seconds": {entry.name: seconds[entry.name] for entry in entries}})


def _measure_memory(task: Task, work: Any, say: Say) -> None:
    """One step of one entry, which is the first thing this process runs: old peaks cannot be mistaken for its own."""
    import paddle

    from ppdiffusers_tome.tools.bench.contenders import put_on
    from ppdiffusers_tome.tools.measuring.measure import measured, resident_meter

    (entry,) = task.entries
    say({"running": entry.name})
    put_on(work.model_or_pipe, entry.contender, entry.ratio, task.plan.max_downsample)
    gc.collect()
    resident = resident_meter()
    resident.reset()
    taken = measured(lambda mark: work.run(1))
    on_cpu = paddle.get_device() == "cpu"
    say({"peak_bytes": taken.peak_bytes, "resident_peak_bytes": resident.peak_bytes() if on_cpu else None})


def _seconds(work: Callable[[], None]) -> float:
    gc.collect()
    gc.disable()
    try:
        synchronize()
        start = time.perf_counter()
        work()
        synchronize()
        return time.perf_counter() - start
    finally:
        gc.enable()


def main() -> int:
    # Libraries print; what they print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    die_first()
    task = Task.from_json(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def say(what: Mapping[str, Any]) -> None:
        print(json.dumps(what), file=answers, flush=True)

    try:
        work_on(task, say)
    except UserError as error:
        say({"user_error": str(error)})
    except Exception as error:
        if not (isinstance(error, MemoryError) or ran_out_of_memory(str(error))):
            raise
        return OUT_OF_MEMORY
    return 0


def _end_with_parent() -> None:
    """The parent holds the other end of standard input; when it is gone, nobody waits for an answer."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
