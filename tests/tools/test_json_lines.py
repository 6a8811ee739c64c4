"""Files with a JSON object per line: torn lines are skipped with a warning, and one process at a time writes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.measure.json_lines import Writer, part_of, read_lines, refuse_writers

TORN = {
    "cut off": b'{"a": 1, "b',
    "power failed": b"\0" * 40,
    "two writers at once": b'{"a": 1, "b{"a": 2}',
    "no UTF-8": b'{"a": "\xff"}',
    "no object": b"[1]",
    "too deep": b"[" * 100_000,
}
# Holds a file until its standard input closes.
HOLD = """
import sys
from pathlib import Path
from ppdiffusers_tome.tools.measure.json_lines import Writer
with Writer(Path(sys.argv[1])) as writer:
    writer.add({"from": "it"})
    print("open", flush=True)
    sys.stdin.read()
"""


def start(code: str, path: Path) -> subprocess.Popen:
    """Start another Python process, and wait for its first line."""
    command = [sys.executable, "-c", code, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


@pytest.mark.parametrize("line", TORN.values(), ids=TORN)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_torn_line_is_skipped_with_a_warning(line: bytes, place: int, path: Path) -> None:
    lines = [b'{"n": 1}', b'{"n": 2}']
    lines.insert(place, line)
    path.write_bytes(b"\n".join(lines) + (b"\n" if place < 2 else b""))
    with pytest.warns(UserWarning, match=rf"line {place + 1} is incomplete"):
        assert read_lines(path) == [{"n": 1}, {"n": 2}]


def test_complete_files_are_read_without_a_warning(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_lines(path) == []
        path.write_bytes(b'{"n": 1}\r\n\n{"n": 2}')  # edited by hand
        assert read_lines(path) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("content", [b"", b'{"n": 1}\n', b'{"n": 1}', b'{"n": 1}\n{"n'])
def test_added_lines_are_lines_of_their_own(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    with Writer(path) as writer:
        writer.add({"n": 2}, {"n": 3})
        writer.add({"n": 4})
    assert path.read_bytes().startswith(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [line["n"] for line in read_lines(path)][-3:] == [2, 3, 4]


def test_a_second_writer_is_refused_until_the_first_has_closed(path: Path) -> None:
    other = start(HOLD, path)
    with pytest.raises(UserError, match="another run writes to"):
        Writer(path)
    other.communicate("")
    with Writer(path) as writer:
        writer.add({"from": "us"})
        with pytest.raises(UserError, match="another run writes"):
            Writer(path)
    assert [line["from"] for line in read_lines(path)] == ["it", "us"]
    assert [each.name for each in path.parent.iterdir()] == ["a.jsonl"]


def test_a_killed_writer_locks_nothing(path: Path) -> None:
    other = start(HOLD, path)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    Writer(path).close()
    assert [each.name for each in path.parent.iterdir()] == ["a.jsonl"]


def test_a_killed_write_costs_its_own_line_alone(path: Path) -> None:
    code = HOLD.replace("sys.stdin.read()", "[writer.add({'n': n, 'much': 'x' * 10**6}) for n in range(10**6)]")
    other = start(code, path)
    while path.stat().st_size < 2 * 10**6:
        time.sleep(0.001)
    other.kill()
    other.communicate()
    with Writer(path) as writer:
        writer.add({"n": "last"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = [line.get("n") for line in read_lines(path)]
    assert numbers == [None, *range(len(numbers) - 2), "last"]


def test_links_and_folders_are_not_written(path: Path, tmp_path: Path) -> None:
    """A folder that somebody else filled may hold a link to a file of the user's."""
    (tmp_path / "mine").write_text("mine")
    path.symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="is a link"):
        Writer(path)
    assert (tmp_path / "mine").read_text() == "mine"
    with pytest.raises(UserError, match="cannot be written"):
        Writer(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_systems_without_locks_are_written_too(
    number: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Writer(path) as writer:
        writer.add({"n": 1})
    assert [each.name for each in path.parent.iterdir()] == ["a.jsonl"]
    assert read_lines(path) == [{"n": 1}]


def test_writers_of_parts_are_found_and_old_locks_removed(path: Path) -> None:
    own, other = Writer(part_of(path, 0)), Writer(part_of(path, 3))
    with pytest.raises(UserError, match=r"another run writes to .*a\.part-0003\.jsonl"):
        refuse_writers(path, own.path)
    other.close()
    (path.parent / ".a.part-0007.jsonl.lock").touch()  # of a killed process
    refuse_writers(path, own.path)
    own.close()
    assert sorted(each.name for each in path.parent.iterdir()) == ["a.part-0000.jsonl", "a.part-0003.jsonl"]
