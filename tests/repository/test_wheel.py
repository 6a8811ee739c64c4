"""The wheel holds the package and its data, and nothing that only this repository uses."""

from environment import run_python
from repository.pages import ROOT

# Training, zoo, tests and our own benchmarks are not in it.
UNWANTED = ("training", "zoo", "losses", "tests", "examples", "demo_model")
MOST_BYTES = 1_500_000  # of the wheel, unpacked here
LIST_FILES = """
from setuptools.command.build_py import build_py
from distutils.core import run_setup
command = build_py(run_setup("setup.py", stop_after="init"))
command.ensure_finalized()
print(*command.get_outputs(include_bytecode=0), sep="\\n")
"""


def test_wheel_is_what_users_run():
    done = run_python("-W", "ignore", "-c", LIST_FILES, cwd=ROOT, check=True)
    parts = (line.partition("ppdiffusers_tome/") for line in done.stdout.splitlines())
    files = {f"ppdiffusers_tome/{path}" for _, found, path in parts if found}
    assert not {file for file in files if any(f"/{name}" in f"/{file}" for name in UNWANTED)}
    assert sum((ROOT / file).stat().st_size for file in files) < MOST_BYTES
    package = ROOT / "ppdiffusers_tome"
    stored = {path.relative_to(ROOT).as_posix() for path in package.rglob("*") if path.is_file()}
    assert not {file for file in stored - files if not file.endswith((".pyc", ".DS_Store"))}
