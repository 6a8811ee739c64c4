"""Going through a plan: a process a setting, another one a peak, and an entry less whenever one does not fit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.ledger import MEMORY, TIME, BenchLedger
from ppdiffusers_tome.tools.bench.plan import Entry, Plan, Setting
from ppdiffusers_tome.tools.bench.worker import OUT_OF_MEMORY, Task
from ppdiffusers_tome.tools.measuring.out_of_memory import ran_out_of_memory, was_killed


class Sweep:
    """What is left to measure of a plan.

    Args:
        plan: all that is to be measured.
        ledger: what was measured so far; findings are added to it as they come.
        tell: called before every run with its setting and entry, for a progress bar.
    """

    def __init__(self, plan: Plan, ledger: BenchLedger, tell: Callable[[str], None] = lambda text: None) -> None:
        self._plan, self._ledger, self._tell = plan, ledger, tell

    @property
    def num_runs(self) -> int:
        """How many runs are left, warm-ups included."""
        total = 0
        for setting in self._plan.settings:
            rounds, entries = self._rounds(setting), self._fitting(setting)
            total += (len(rounds) + 1) * len(entries) if rounds else 0
            total += len(self._unweighed(setting))
        return total

    def run(self) -> None:
        """Measure what is left.

        Raises:
            UserError: the model cannot be loaded or run so, or the ledger was begun on another machine.
            RuntimeError: a worker failed for another reason than memory.
        """
        for setting in self._plan.settings:
            # Once for all entries, and again without it whenever one of them does not fit.
            while (rounds := self._rounds(setting)) and (entries := self._fitting(setting)):
                self._work(Task(self._plan, setting, tuple(entries), tuple(rounds)), TIME)
            for entry in self._unweighed(setting):
                self._work(Task(self._plan, setting, (entry,), ()), MEMORY)

    def _rounds(self, setting: Setting) -> list[int]:
        """The rounds that are left."""
        done = self._ledger.rounds(setting)
        return [number for number in range(self._plan.repeats) if number not in done]

    def _fitting(self, setting: Setting) -> list[Entry]:
        """The entries that did not run out of memory, as far as is known."""
        return [entry for entry in self._plan.entries if not self._ledger.out_of_memory(setting, entry, TIME)]

    def _unweighed(self, setting: Setting) -> list[Entry]:
        """The entries whose memory is left to measure."""
        ledger = self._ledger
        return [
            entry for entry in self._plan.entries
            if self._plan.memory and ledger.peaks(setting, entry) is None
            and not ledger.out_of_memory(setting, entry, MEMORY)
        ]  # fmt: skip

    def _work(self, task: Task, during: str) -> None:
        """One worker: write down what it finds; if memory ends it, who was running (all, if nobody was yet)."""
        running = task.entries
        for answer in _answers(task):
            if "user_error" in answer:
                raise UserError(answer["user_error"])
            if "on" in answer:
                self._ledger.note_machine(answer["on"])
            elif "running" in answer:
                running = tuple(entry for entry in task.entries if entry.name == answer["running"])
                self._tell(f"{task.setting.name}: {answer['running']}")
            elif "round" in answer:
                self._ledger.add_round(task.setting, answer["round"], answer["seconds"])
            elif "peak_bytes" in answer:
                self._ledger.add_peak(task.setting, task.entries[0], answer)
            else:
                for entry in running:
                    self._ledger.add_out_of_memory(task.setting, entry, during)


def _answers(task: Task) -> Iterator[dict[str, Any]]:
    """What a worker says, and ``{"out_of_memory": true}`` last where memory ended it."""
    command = [sys.executable, "-m", "ppdiffusers_tome.tools.bench.worker"]
    kills = _kills()
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, text=True)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(task.to_json() + "\n")
                process.stdin.flush()
            for line in process.stdout:
                yield json.loads(line)
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            with suppress(BrokenPipeError):
                process.stdin.close()
        if status and _memory_ended(status, kills, _last(words)):
            yield {"out_of_memory": True}
        elif status == -signal.SIGINT:
            raise KeyboardInterrupt
        elif status:
            raise RuntimeError(f"the worker for {task.setting.name} ended with status {status}:\n{_last(words)}")


def _memory_ended(status: int, kills: int | None, words: str) -> bool:
    """True when a worker ended for want of memory: it said so, or the system killed it."""
    if was_killed(status):
        return kills is None or _kills() != kills
    return status == OUT_OF_MEMORY or (status < 0 and ran_out_of_memory(words))


def _kills() -> int | None:
    """How many processes the system has killed to get memory; None where it keeps no count."""
    with suppress(OSError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def _last(words: IO[bytes]) -> str:
    words.seek(0)
    return words.read().decode(errors="replace")[-3000:]
