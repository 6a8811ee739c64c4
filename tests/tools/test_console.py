"""What commands share on the terminal: the parser's errors, tables, lines above progress bars."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from ppdiffusers_tome.errors import UserError
from ppdiffusers_tome.tools.bench.result_files import ResultFiles
from ppdiffusers_tome.tools.cli.console.parsing import Parser
from ppdiffusers_tome.tools.cli.console.tables import Page, Table
from ppdiffusers_tome.tools.cli.program import main
from tools.cli.conftest import Gone


def command(name: str) -> ModuleType:
    module = ModuleType(name)
    module.HELP = f"{name}."

    def add_arguments(parser: Parser) -> None:
        parser.add_argument("--ratios", nargs="+", type=float)
        parser.add_argument("--methods", nargs="+", choices=["tome", "todo"])
        parser.add_argument("--level", type=int, choices=(1, 2, 4))

    module.add_arguments = add_arguments
    module.run = lambda args: args.ratios
    return module


@pytest.fixture
def parser() -> Parser:
    made = Parser(prog="program")
    made.add_argument("--version", action="store_true")
    made.add_commands({"draw": command("draw")}, "COMMAND")
    return made


def test_the_chosen_command_runs(parser: Parser) -> None:
    args = parser.parse_args(["draw", "--ratios", "0.5", "0.7"])
    assert args.command.run(args) == [0.5, 0.7]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["draw", "--ratio", "1"],
            "'--ratio' is not an argument of draw; did you mean --ratios?; see program draw --help",
        ),
        (["draw", "--rat=1"], "'--rat=1' is not an argument of draw; did you mean --ratios?; see program draw --help"),
        (["draw", "--hlep"], "'--hlep' is not an argument of draw; did you mean --help?; see program draw --help"),
        (["draw", "more"], "'more' is not an argument of draw; see program draw --help"),
        (["--verson", "draw"], "'--verson' is not an argument of program; did you mean --version?; see program --help"),
        (["draw", "--ratios=--"], "argument --ratios: '--' is not a value; see program draw --help"),
        (["draw", "--ratios", "x"], "argument --ratios: invalid float value: 'x'; see program draw --help"),
        ([], "the following arguments are required: COMMAND; see program --help"),
    ],
)
def test_errors_are_a_sentence(parser: Parser, arguments: list[str], sentence: str) -> None:
    with pytest.raises(UserError) as raised:
        parser.parse_args(arguments)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("arguments", "given", "end"),
    [
        (["darw"], "'darw'", "); did you mean draw?; see program --help"),
        (["draw", "--methods", "tome", "tood"], "'tood'", "); did you mean todo?; see program draw --help"),
        (["draw", "--methods", "keys"], "'keys'", "); see program draw --help"),
        (["draw", "--level", "3"], "3", "); see program draw --help"),
    ],
)
def test_what_is_none_of_the_choices_is_told_the_nearest(
    parser: Parser, arguments: list[str], given: str, end: str
) -> None:
    """Whether argparse quotes the choices depends on Python's version."""
    with pytest.raises(UserError) as raised:
        parser.parse_args(arguments)
    assert f"invalid choice: {given} (choose from" in str(raised.value)
    assert str(raised.value).endswith(end)


def test_a_table_in_markdown() -> None:
    table = Table(("name", "seconds"), [("a|b", 1.5)])
    table.add("c", 2)
    assert table.markdown() == "| name | seconds |\n|---|---:|\n| a\\|b | 1.5 |\n| c | 2 |\n"


def test_a_table_in_a_pipe_has_a_line_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    Table(("name", "seconds"), [("[bold]" + "x" * 300, 1.5), ("c", 22)]).print()
    heading, rule, *rows = capsys.readouterr().out.splitlines()
    assert heading.split() == ["name", "seconds"]
    assert set(rule) == {"─"}
    assert [row.split() for row in rows] == [["[bold]" + "x" * 300, "1.5"], ["c", "22"]]
    assert rows[0].index("1.5") + 3 == rows[1].index("22") + 2  # numbers stand on the right


def test_a_row_must_fit_its_headings() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells does not fit 2 headings"):
        Table(("name", "seconds"), [("a",)])


def test_lines_go_above_progress_bars(capsys: pytest.CaptureFixture[str]) -> None:
    from tqdm import tqdm

    from ppdiffusers_tome.tools.cli.console.output import print_line, warn

    with tqdm(total=2, file=sys.stderr) as bar:
        print_line("a result")
        warn("a warning")
        bar.update()
    captured = capsys.readouterr()
    assert captured.out == "a result\n"
    assert "warning: a warning\n" in captured.err


LOADING = """
import io, json, sys
from ppdiffusers_tome.tools.cli.console.output import quiet_libraries
said = []
class Screen(io.StringIO):
    def isatty(self):
        return json.loads(sys.argv[1])
    def write(self, text):
        said.append([text, "paddle" in sys.modules or "ppdiffusers" in sys.modules])
sys.stderr = Screen()
with quiet_libraries():
    pass
print(json.dumps(said))
"""


def test_whoever_waits_is_told_why_before_it_takes_seconds() -> None:
    def said(on_a_terminal: str) -> list:
        done = subprocess.run(
            [sys.executable, "-c", LOADING, on_a_terminal], capture_output=True, text=True, check=True
        )  # fmt: skip
        return json.loads(done.stdout)

    assert said("true")[0] == ["loading Paddle and ppdiffusers ...", False]
    assert said("false") == []


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_nothing_is_cut_off_on_a_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Narrow ones break words; a number is read as a whole."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    headings = ["configuration", "seconds in blocks", "speed-up", "peak memory, denoising", "PSNR (dB)", "SSIM"]
    row = ["ours tofu 0.5, tile 16, reuse_steps 4", "0.0123 s", "12.34x", "1,234 MiB", "40.5 (38.7)", "0.987"]
    Table(headings, [row]).print()
    printed = capsys.readouterr().out
    assert "…" not in printed
    assert all(number in printed for number in row[1:])
    assert all(word in printed for word in ("ours", "tofu", "tile", "16"))


def test_results_are_written_before_anything_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ResultFiles(tmp_path, "results")
    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(BrokenPipeError):
        files.write(Page("Results", ["a note"], [Table(["one"], [["two"]])]), {"one": "two"})
    monkeypatch.undo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "results.md"]


def test_output_that_nobody_reads_ends_the_program_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", Gone())
    code = main(["doctor", "--markdown"])
    monkeypatch.undo()
    assert code == 141
    assert "Traceback" not in capfd.readouterr().err
