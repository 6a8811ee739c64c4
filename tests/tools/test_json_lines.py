"""Files with a JSON object a line: torn lines are told and skipped, and one process at a time adds to a file."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.measure.json_lines import Writer, part_of, parts_of, read_lines, refuse_writers

TORN = {
    "cut off": b'{"a": 1, "b',
    "power failed": b"\0" * 40,
    "two writers at once": b'{"a": 1, "b{"a": 2}',
    "no UTF-8": b'{"a": "\xff"}',
    "no object": b"[1]",
    "too deep": b"[" * 100_000,
}


def run(code: str, *arguments: str) -> subprocess.Popen:
    """A Python process of its own."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


HOLDS = """
import sys
from pathlib import Path
from ppdiffusers_tome.tools.measure.json_lines import Writer
with Writer(Path(sys.argv[1])) as writer:
    writer.add({"from": "it"})
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("line", TORN.values(), ids=TORN)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_torn_line_is_told_and_skipped_wherever_it_stands(line: bytes, place: int, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [b'{"n": 1}', b'{"n": 2}']
    lines.insert(place, line)
    path.write_bytes(b"\n".join(lines) + (b"\n" if place < 2 else b""))
    with pytest.warns(UserWarning, match=rf"^{path}, line {place + 1} is incomplete, .*; it is skipped$"):
        assert read_lines(path) == [{"n": 1}, {"n": 2}]


def test_whole_files_are_read_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_lines(path) == []
        path.write_bytes(b'{"n": 1}\r\n\n{"n": 2}')  # edited by hand
        assert read_lines(path) == [{"n": 1}, {"n": 2}]


def test_many_torn_lines_are_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{\n" * 8 + '{"n": 1}\n')
    with pytest.warns(UserWarning, match=r"a\.jsonl, lines 1, 2, 3, 4, 5 and 3 more are incomplete") as told:
        assert read_lines(path) == [{"n": 1}]
    assert len(told) == 1


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read \(Is a directory\)"):
        read_lines(tmp_path)


@pytest.mark.parametrize("there", [b"", b'{"n": 1}\n', b'{"n": 1}', b'{"n": 1}\n{"n'])
def test_what_is_added_is_a_line_of_its_own(there: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(there)
    with Writer(path) as writer:
        writer.add({"n": 2}, {"n": 3})
        writer.add({"n": 4})
    assert path.read_bytes().startswith(there)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [line["n"] for line in read_lines(path)][-3:] == [2, 3, 4]


def test_a_second_writer_is_refused_until_the_first_has_closed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    other = run(HOLDS, str(path))
    assert other.stdout.readline() == "has it\n"
    with pytest.raises(UserError, match=r"^another run writes to .*a\.jsonl; wait until it has ended, or choose"):
        Writer(path)
    other.communicate("")
    with Writer(path) as writer:
        writer.add({"from": "us"})
        with pytest.raises(UserError, match="another run writes"):
            Writer(path)
    assert [line["from"] for line in read_lines(path)] == ["it", "us"]
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_killed_writer_locks_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    other = run(HOLDS, str(path))
    other.stdout.readline()
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert (tmp_path / ".a.jsonl.lock").exists()
    Writer(path).close()
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]


# Each waits for its turn, finds out what the last one wrote, and adds the next number.
TAKES_TURNS = """
import sys, time
from pathlib import Path
from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.measure.json_lines import Writer, read_lines
path, turns = Path(sys.argv[1]), 0
while turns < 25:
    try:
        with Writer(path) as writer:
            lines = read_lines(path)
            time.sleep(0.001)
            writer.add({"n": len(lines)})
            turns += 1
    except UserError as error:
        assert "another run writes" in str(error), error
"""


def test_no_two_processes_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    others = [run(TAKES_TURNS, str(path)) for _ in range(4)]
    for other in others:
        other.communicate(timeout=120)
        assert other.returncode == 0
    assert [line["n"] for line in read_lines(path)] == list(range(100))
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A folder that somebody else filled may hold one, to a file that is not theirs to change."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    path = tmp_path / "a.jsonl"
    path.symlink_to(mine)
    with pytest.raises(UserError, match=r"a\.jsonl is a link, and nothing is added to what it leads to"):
        Writer(path)
    assert mine.read_text() == "mine"


def test_what_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(UserError, match=r"a\.jsonl cannot be written \(Is a directory\); choose another --output"):
        Writer(tmp_path / "a.jsonl")
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_written_all_the_same(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Writer(tmp_path / "a.jsonl") as writer:
        writer.add({"n": 1})
    assert [each.name for each in tmp_path.iterdir()] == ["a.jsonl"]
    assert read_lines(tmp_path / "a.jsonl") == [{"n": 1}]


def test_a_system_without_fcntl_writes_too(tmp_path: Path) -> None:
    """As Windows is; there filelock has another lock."""
    code = f"import sys; sys.modules['fcntl'] = None{HOLDS}"
    other = run(code, str(tmp_path / "a.jsonl"))
    assert other.stdout.readline() == "has it\n"
    other.communicate("")
    assert other.returncode == 0
    assert read_lines(tmp_path / "a.jsonl") == [{"from": "it"}]


def test_parts_are_named_by_rank(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for rank in (10, 1):
        part_of(path, rank).touch()
    assert [part.name for part in parts_of(path)] == ["a.part-0001.jsonl", "a.part-0010.jsonl"]


def test_writers_of_parts_are_found_and_what_killed_ones_left_is_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    own, other = Writer(part_of(path, 0)), Writer(part_of(path, 3))
    with pytest.raises(UserError, match=r"another run writes to .*a\.part-0003\.jsonl"):
        refuse_writers(path, own.path)
    other.close()
    own.close()
    (tmp_path / ".a.part-0007.jsonl.lock").touch()
    with Writer(part_of(path, 0)) as own:
        refuse_writers(path, own.path)
    assert not [each.name for each in tmp_path.iterdir() if each.name.endswith(".lock")]


def test_a_write_that_is_killed_half_way_costs_that_line_alone(tmp_path: Path) -> None:
    """For real: a process writes as fast as it can, with lines of a megabyte, until it is killed."""
    path = tmp_path / "a.jsonl"
    code = (
        "import sys; from pathlib import Path; from ppdiffusers_tome.tools.measure.json_lines import Writer\n"
        "writer = Writer(Path(sys.argv[1]))\n"
        "for n in range(10**6): writer.add({'n': n, 'much': 'x' * 10**6})"
    )
    for _ in range(3):
        other = run(code, str(path))
        size = path.stat().st_size if path.exists() else 0
        while not path.exists() or path.stat().st_size < size + 2 * 10**6:
            assert other.poll() is None
            time.sleep(0.001)
        other.kill()
        other.communicate()
    with Writer(path) as writer:
        writer.add({"n": "last"})
    lines = path.read_bytes().split(b"\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [line["n"] for line in read_lines(path)]
    whole = [json.loads(line)["n"] for line in lines if line.startswith(b"{") and line.endswith(b"}")]
    assert found == whole
    assert found[-1] == "last"
    assert found.count(0) == 3
