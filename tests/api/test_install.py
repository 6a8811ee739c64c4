"""Importing the package gives ppdiffusers' classes their methods; uninstalling gives the port back."""

import inspect
import pydoc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paddle
import ppdiffusers
import pytest

import ppdiffusers_tome
import tiny
from environment import run_python
from ppdiffusers_tome import apply_tome, install, remove_tome, uninstall
from ppdiffusers_tome.patching.call_stack import CALL_STACK

pytestmark = pytest.mark.once

REPORT = """
import json
def report():
    import paddle, ppdiffusers
    from ppdiffusers import DiffusionPipeline, StableDiffusionPipeline, UNet2DConditionModel
    from ppdiffusers.models.modeling_utils import ModelMixin
    import ppdiffusers.patches.tomesd_patch_utils
    classes = (paddle.nn.Layer, ModelMixin, DiffusionPipeline, StableDiffusionPipeline, UNet2DConditionModel)
    return {cls.__name__: {name: getattr(getattr(cls, name), "__module__", type(getattr(cls, name)).__name__)
                           for name in ("apply_tome", "remove_tome", "tome") if hasattr(cls, name)} for cls in classes}
"""
OURS = {"apply_tome": "ppdiffusers_tome.api", "remove_tome": "ppdiffusers_tome.patching.apply"}
WITH_TOME = {**OURS, "tome": "property"}
EXPECTED = {
    "Layer": OURS, "ModelMixin": WITH_TOME, "DiffusionPipeline": WITH_TOME,
    "StableDiffusionPipeline": WITH_TOME, "UNet2DConditionModel": WITH_TOME,
}  # fmt: skip


def test_a_script_beside_a_clone_gets_the_package_and_not_the_clones_folder(tmp_path: Path) -> None:
    """As README clones it: a folder of the package's name, without ``__init__.py``."""
    (tmp_path / "ppdiffusers_tome").mkdir()
    code = "import ppdiffusers_tome; print(ppdiffusers_tome.__file__)"
    done = run_python("-c", code, cwd=tmp_path, PYTHONPATH="")
    assert Path(done.stdout.strip()).name == "__init__.py"


def test_import_alone_lists_the_public_names_and_imports_neither_paddle_nor_ppdiffusers() -> None:
    code = """
import json, sys, ppdiffusers_tome
names = [name for name in dir(ppdiffusers_tome) if name[0] != "_"]
from ppdiffusers_tome import ToMeConfig, ToMeError
ToMeConfig(0.4)
print(json.dumps([names, [name for name in ("paddle", "ppdiffusers", "paddlenlp") if name in sys.modules]]))
"""
    names, imported = tiny.run_in_new_process(code)
    assert set(names) == {name for name in ppdiffusers_tome.__all__ if name[0] != "_"}
    assert imported == []


@pytest.mark.parametrize(
    "cls", [ppdiffusers.StableDiffusionPipeline, ppdiffusers.UNet2DConditionModel, paddle.nn.Layer]
)
@pytest.mark.parametrize("function", [apply_tome, remove_tome], ids=lambda function: function.__name__)
def test_help_on_a_method_is_that_of_the_function(cls: type, function: Callable[..., Any]) -> None:
    """``help(pipe.apply_tome)``, and what an editor completes from an object or from types."""
    method = getattr(cls, function.__name__)
    own, its = (list(inspect.signature(each).parameters.values()) for each in (method, function))
    assert own == its
    assert function.__doc__
    assert (Path(ppdiffusers_tome.__file__).parent / "py.typed").is_file()  # so that types count
    shown = pydoc.plain(pydoc.render_doc(method))
    assert all(line.strip() in shown for line in function.__doc__.splitlines())
    assert all(each.name in shown for each in its[1:])
    assert "unset" not in shown.lower()
    for words in ("sx: int = ...", "model_or_pipe: an argument of the function only, not of the method"):
        assert (words in shown) == (function is apply_tome)


def test_import_after_ppdiffusers_installs_and_uninstall_gives_back_exactly_what_was_there() -> None:
    code = """
import paddle, ppdiffusers
from ppdiffusers import StableDiffusionPipeline
from ppdiffusers.models.modeling_utils import ModelMixin
classes = (paddle.nn.Layer, ModelMixin, ppdiffusers.DiffusionPipeline)
names = ("apply_tome", "remove_tome", "tome")
held = lambda: [[vars(cls).get(name) for name in names] for cls in classes]
before = held()
import ppdiffusers_tome
first, reported = held(), report()
ppdiffusers_tome.install()
ppdiffusers_tome.install()
again = held()
ppdiffusers_tome.uninstall()
back = held()
ppdiffusers_tome.uninstall()
still = held()
ppdiffusers_tome.install()
pairs = (before, first), (first, again), (back, before), (still, before), (held(), first)
port = before[0][0].__module__ + " " + before[2][0].__module__
print(json.dumps([reported, port, *(all(x is y for p, q in zip(a, b) for x, y in zip(p, q)) for a, b in pairs)]))
"""
    module = "ppdiffusers.patches.tomesd_patch_utils"
    found = tiny.run_in_new_process(REPORT + code)
    assert found == [EXPECTED, f"{module} {module}", False, True, True, True, True]


def test_uninstall_before_ppdiffusers_comes_leaves_it_alone() -> None:
    code = "import ppdiffusers_tome\nppdiffusers_tome.uninstall()\n"
    report = tiny.run_in_new_process(f"{REPORT}\n{code}print(json.dumps(report()))")
    assert report["DiffusionPipeline"]["apply_tome"] == "ppdiffusers.patches.tomesd_patch_utils"
    assert "tome" not in report["DiffusionPipeline"]
    assert "tome" not in report["ModelMixin"]


def test_import_before_ppdiffusers_installs_also_where_the_first_import_of_ppdiffusers_fails() -> None:
    """Paddle 2.6.2's import does fail at the first try in some environments; ToMe must come with the second."""
    code = """
import sys, ppdiffusers_tome
class Refuse:
    def find_spec(self, name, path, target=None):
        if name == "ppdiffusers.utils":
            raise ImportError("not now")
sys.meta_path.insert(0, Refuse())
try:
    import ppdiffusers
except ImportError:
    pass
else:
    raise SystemExit("it did import")
sys.meta_path = [finder for finder in sys.meta_path if not isinstance(finder, Refuse)]
for name in [name for name in sys.modules if name.startswith("ppdiffusers.")]:
    del sys.modules[name]
from ppdiffusers.models import UNet2DConditionModel
"""
    assert tiny.run_in_new_process(f"{REPORT}\n{code}print(json.dumps(report()))") == EXPECTED


class TestCallsOfPipelines:
    @pytest.fixture(autouse=True)
    def _install_again(self) -> Iterator[None]:
        install()
        yield
        install()

    @staticmethod
    def find_call(cls: type, **given: Any) -> Any:
        return cls.__new__(cls)(**given)

    def test_it_is_told_in_classes_of_all_kinds(self) -> None:
        class Own(ppdiffusers.StableDiffusionPipeline):
            def __call__(self, pipe: Any = None) -> Any:
                return CALL_STACK.pipeline_call, pipe

        class Mixin:
            def __call__(self) -> Any:
                return CALL_STACK.pipeline_call

        class Mixed(Mixin, ppdiffusers.StableDiffusionPipeline):
            pass

        class Inherited(Mixed):
            pass

        assert self.find_call(Own, pipe=3)[0] is not None
        assert self.find_call(Own, pipe=3)[1] == 3
        assert self.find_call(Mixed) is not None
        assert self.find_call(Inherited) is not None
        assert CALL_STACK.pipeline_call is None
        uninstall()
        assert self.find_call(Own)[0] is self.find_call(Mixed) is self.find_call(Inherited) is None
        assert "__call__" not in vars(Mixed)

    def test_one_that_other_code_replaces_is_told_after_the_next_install(self) -> None:
        class Own(ppdiffusers.StableDiffusionPipeline):
            pass

        own = Own.__call__ = lambda self: CALL_STACK.pipeline_call
        assert self.find_call(Own) is None
        install()
        assert self.find_call(Own) is not None
        uninstall()
        assert vars(Own)["__call__"] is own
