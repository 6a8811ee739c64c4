"""Each operator computes what Paddle does, in every form that its entry accepts; other forms are refused."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino
import paddle
import paddle.nn.functional as F
import pytest

from compilation.comparison import needs_openvino
from ppdiffusers_tome.compilation.contents import Contents
from ppdiffusers_tome.compilation.model_call import StepValues, make_call
from ppdiffusers_tome.compilation.operators import OPERATORS
from ppdiffusers_tome.compilation.trace import trace_call
from ppdiffusers_tome.errors import UncompilableError

pytestmark = needs_openvino

_DRAW = np.random.RandomState(0)
Array = np.ndarray
SETTINGS = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}


class _Function(paddle.nn.Layer):
    """A function of tensors that are given, or that the layer holds as weights."""

    def __init__(self, function: Callable[..., Any], held: Sequence[Array]) -> None:
        super().__init__()
        self.function, self.number = function, len(held)
        for number, x in enumerate(held):
            self.register_buffer(f"x{number}", paddle.to_tensor(x))
        self.eval()

    def forward(self, *given: Any) -> Any:
        return self.function(*(getattr(self, f"x{number}") for number in range(self.number)), *given)


def compute(function: Callable[..., Any], inputs: Sequence[Array], *, held: bool) -> tuple[list[Array], list[str]]:
    """Compute a function by a program; return the results and the operators in the program."""
    names: list[str] = []

    def record(*args: Any) -> Any:
        result = function(*args)
        if not paddle.in_dynamic_mode():
            operators = paddle.static.default_main_program().global_block().ops
            names.extend(each.name().removeprefix("pd_op.").rstrip("_") for each in operators)
        return result

    layer, given = _Function(record, inputs if held else ()), () if held else inputs
    trace = trace_call(
        make_call(layer, Contents(layer), "float32", tuple(map(paddle.to_tensor, given)), {}, StepValues())
    )
    results = openvino.compile_model(trace.openvino_model, "CPU", SETTINGS)([given[n] for n in trace.inputs])
    return [results[number] for number in range(len(results))], names


def expect(function: Callable[..., Any], inputs: Sequence[Array]) -> list[Array]:
    """Compute a function by Paddle."""
    with paddle.no_grad():
        results = function(*map(paddle.to_tensor, inputs))
    return [each.numpy() for each in (results if isinstance(results, (list, tuple)) else [results])]


def real(*shape: int) -> Array:
    """Draw numbers of either sign."""
    return _DRAW.normal(size=shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return np.abs(real(*shape)) + np.float32(0.1)


def whole(*shape: int, dtype: Any = np.int64) -> Array:
    """Draw whole numbers of either sign, with zeros and equal ones."""
    return _DRAW.randint(-4, 5, shape).astype(dtype)


def nonzero(*shape: int, dtype: Any = np.int64) -> Array:
    return (_DRAW.randint(1, 5, shape) * _DRAW.choice([-1, 1], shape)).astype(dtype)


def index(*values: Any) -> Array:
    return np.array(values)


def truth(*shape: int) -> Array:
    return np.asarray(_DRAW.rand(*shape) < 0.5)


KINDS = ("float32", "float64", "int64", "int32", "bool")
X, Y = real(2, 3, 4), real(2, 3, 4)
REALS = (X, real(5), np.full([], 0.7, np.float32), X[:1].astype(np.float64))
WHOLES = (whole(2, 3), whole(4, dtype=np.int32))
IMAGE, VIDEO = real(2, 4, 7, 6), real(2, 4, 5, 7, 6)
ONES = real(1, 3, 1, 2, 1)  # of which three axes can be squeezed


def singles(function: Callable[..., Any], *inputs: Array) -> list[tuple[Any, ...]]:
    """Cases of one input."""
    return [(function, x) for x in inputs]


def ways(function: Callable[..., Any], inputs: Sequence[Array], values: Any) -> list[tuple[Any, ...]]:
    """A case for each of some values of the last argument."""
    return [(lambda *args, value=value: function(*args, value), *inputs) for value in values]


def pairs(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """Cases of two inputs, with broadcasting on either side."""
    shapes = [((2, 3, 4), (3, 1)), ((4,), (2, 3, 4)), ((2, 3), ())]
    made = [(function, positive(*one), np.asarray(positive(*other))) for one, other in shapes]
    made += [(function, np.abs(nonzero(2, 3, dtype=kind)), np.abs(nonzero(3, dtype=kind))) for kind in (np.int32, int)]
    return [*made, (function, positive(2, 3).astype(np.float64), positive(3).astype(np.float64))]


def signs(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """The same with numbers of either sign."""
    made = [(function, real(2, 3, 4), real(3, 1)), (function, nonzero(2, 3), nonzero(3))]
    return [*pairs(function), *made, (function, nonzero(5, 6, dtype=np.int32), nonzero(5, 1, dtype=np.int32))]


def comparisons(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """Cases of equal numbers, of every type, with broadcasting."""
    made = [(function, whole(9, 2).astype(kind), whole(2).astype(kind)) for kind in KINDS]
    return [*made, (function, X, real(3, 1)), (function, real(4), X)]


def reductions(function: Callable[..., Any], *inputs: Array) -> list[tuple[Any, ...]]:
    """Cases of every form of axes, kept or not."""
    axes = (None, 0, -1, [0, 2], [-1, 0])
    made = [(lambda x, a=a, k=k: function(x, a, keepdim=k), X) for a in axes for k in (False, True)]
    made += [(lambda x: function(x, -1), x) for x in inputs] + [(function, x) for x in inputs]
    return [*made, (lambda x: function(x, paddle.full([], 1, "int64")), X), (function, REALS[2])]


def matrices(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """Cases of every transposition and number of axes."""
    shapes = [((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 5, 3, 4), (5, 4, 6)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5))]
    made = []
    for (one, other), x, y in itertools.product([*shapes, ((4,), (4,))], (False, True), (False, True)):
        first, second = (
            np.ascontiguousarray(each.swapaxes(-1, -2)) if is_turned and each.ndim > 1 else each
            for each, is_turned in ((real(*one), x), (real(*other), y))
        )
        made.append((lambda a, b, x=x, y=y: function(a, b, transpose_x=x, transpose_y=y), first, second))
    return made


def convolutions(function: Callable[..., Any], rank: int) -> list[tuple[Any, ...]]:
    """Cases of strides, paddings of each side, dilations and groups."""
    x, sides = (IMAGE, (3, 2)) if rank == 2 else (VIDEO, (3, 2, 2))
    forms: list[dict[str, Any]] = [
        dict(), dict(stride=[2, 1, 2][:rank]), dict(padding=[1, 0, 2][:rank]), dict(dilation=[2, 1, 2][:rank]),
        dict(padding=[1, 0, 2, 1, 0, 1][: 2 * rank]),
        dict(padding=[[0, 0], [0, 0], [1, 2], [0, 1], [2, 0]][: 2 + rank]),
    ]  # fmt: skip
    made = [(lambda x, w, form=form: function(x, w, **form), x, real(6, 4, *sides)) for form in forms]
    grouped = dict(groups=2, stride=[1, 2, 1][:rank], padding=[0, 1, 2, 1, 1, 0][: 2 * rank])
    made.append((lambda x, w: function(x, w, **grouped), x, real(6, 2, *sides)))
    return [*made, (function, x, real(6, 4, *sides), real(6))]


def norms(function: Callable[..., Any], channels: int, *inputs: Array) -> list[tuple[Any, ...]]:
    """Cases with and without scale and bias."""
    scale, bias = real(channels), real(channels)
    return [
        *singles(function, *inputs), *[(function, x, scale, bias) for x in inputs],
        *[(lambda x, w: function(x, w, None), x, scale) for x in inputs],
        *[(lambda x, b: function(x, None, b), x, bias) for x in inputs],
    ]  # fmt: skip


def resizes(mode: str) -> list[tuple[Any, ...]]:
    forms: list[dict[str, Any]] = [
        dict(size=[14, 12]), dict(size=[9, 11]), dict(size=[3, 4]), dict(scale_factor=2), dict(scale_factor=[2, 3]),
        dict(scale_factor=[0.5, 0.5]), dict(scale_factor=1.3), dict(scale_factor=[2.7, 1.5]), dict(scale_factor=0.7),
        dict(scale_factor=2, align_mode=1), dict(size=[9, 11], align_mode=1),
    ]  # fmt: skip
    return [(lambda x, form=form: F.interpolate(x, mode=mode, **form), IMAGE) for form in forms]


ALL = slice(None)
ROWS = index(1, 0, 1)
# By operator, functions and their inputs.
CASES: dict[str, list[tuple[Any, ...]]] = {
    **{name: singles(getattr(paddle, name), *REALS) for name in ("cos", "sin", "floor", "ceil", "erf", "reciprocal")},
    **{name: singles(getattr(F, name), *REALS) for name in ("relu", "sigmoid", "tanh")},
    **{name: singles(getattr(paddle, name), *REALS, *WHOLES) for name in ("abs", "square")},
    **{name: singles(getattr(paddle, name), positive(2, 3), positive(4).astype(float)) for name in ("sqrt", "rsqrt")},
    **{name: [(getattr(paddle, name), truth(9, 8), truth(8))] for name in ("logical_and", "logical_or")},
    **{name: singles(getattr(F, name), X, real(5)) for name in ("silu", "swish")},
    **{
        name: [*ways(getattr(F, name), (X,), (0, 1, -1, -2)), *singles(getattr(F, name), real(3), REALS[3])]
        for name in ("softmax", "log_softmax")
    },
    **{name: reductions(getattr(paddle, name), *WHOLES, REALS[3]) for name in ("max", "min")},
    "exp": singles(paddle.exp, *REALS[:3]),
    **{name: signs(getattr(paddle, name)) for name in ("add", "subtract", "divide", "maximum", "minimum")},
    "multiply": [*signs(paddle.multiply), (lambda x, y: F.group_norm(x, 2, 0.01) * y, IMAGE, real(2, 4, 1, 1))],
    **{
        name: comparisons(getattr(paddle, name))
        for name in ("equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal")
    },
    "log": singles(paddle.log, positive(2, 3), positive(4)),
    "logical_not": [(paddle.logical_not, truth(2, 3))],
    "elementwise_pow": [*pairs(paddle.pow), (lambda x: x**2, whole(2, 3)), (lambda x: 2.5**x, X)],
    "remainder": [*signs(paddle.remainder), (lambda x: x % 3, whole(2, 5))],
    "leaky_relu": [(lambda x, s=s: F.leaky_relu(x, s), x) for s in (0.01, 0.3) for x in REALS],
    "gelu": ways(F.gelu, (X,), (True, False)),
    "pow": [*ways(paddle.pow, (positive(2, 3),), (2, 0.5, -1.5, 0)), *ways(paddle.pow, (whole(2, 3),), (2, 3))],
    "scale": [
        (lambda x, form=form: paddle.scale(x, *form), x)
        for form in ((2.5, 1.5), (2.5, 1.5, False), (1, 0.5), (0.5, 0), (1, 0), (3, 2, False))
        for x in (X, *WHOLES)
    ],
    "clip": [
        (lambda x, low=low, high=high: paddle.clip(x, low, high), x)
        for low, high in ((-0.5, 0.7), (None, 1), (-1, None))
        for x in (X, *WHOLES, REALS[3])
    ] + [(lambda x: paddle.clip(x, paddle.full([], -0.4), paddle.full([1], 0.5)), X)],
    "cast": [
        (lambda x, kind=kind: x.cast(kind), x)
        for kind in KINDS for x in (3 * X, 0.4 * X, *WHOLES, truth(3, 2)) if kind != x.dtype
    ],
    "assign": singles(paddle.assign, X, WHOLES[0], truth(3)),
    "share_data": singles(lambda x: x.detach() + x.detach(), X, WHOLES[0]),
    "dropout": ways(lambda x, p: F.dropout(x, p, training=False), (X,), (0.3, 1.0)),
    "where": [
        (paddle.where, truth(2, 3, 4), X, Y), (paddle.where, truth(2, 3, 4), whole(2, 3, 4), whole(2, 3, 4)),
        (lambda c, x: paddle.where(c, x, 0.5), truth(2, 3, 4), X), (paddle.where, truth(9), truth(9), truth(9)),
    ],
    "matmul": [
        *matrices(paddle.matmul), (paddle.matmul, whole(2, 3), whole(3, 4)),
        (lambda x: x @ x.t(), real(2, 3).astype(float)),
    ],
    "bmm": [(paddle.bmm, real(2, 3, 4), real(2, 4, 5))],
    "einsum": [
        (lambda *x, rule=rule: paddle.einsum(rule, *x), *[real(*map(int, shape)) for shape in shapes])
        for rule, *shapes in (
            ("bhid,bhjd->bhij", "2345", "2365"), ("ij,jk", "23", "34"), ("b i d, b j d -> b j i", "234", "254"),
            ("...ij,...jk->...ik", "234", "245"), ("ij->ji", "23"), ("ij->j", "23"), ("i,j->ij", "2", "3"),
            ("ij,jk,kl->li", "23", "34", "45"),
        )
    ],
    "reshape": [
        *ways(paddle.reshape, (X,), ([6, 4], [-1], [0, -1], [0, 2, -1], [4, 3, 2])),
        (lambda x: x.reshape([3, 2]), truth(2, 3)),
        (lambda x: x.reshape([paddle.shape(x)[0], -1]), X), (lambda x: x.reshape(paddle.to_tensor([4, 6])), X),
        (lambda x: x.reshape([]), real(1)), (lambda x: x.reshape([1]), REALS[2]),
        (lambda x: x.reshape([3, 2]), whole(2, 3)),
    ],
    "flatten": [
        (lambda x, a=a, b=b: paddle.flatten(x, a, b), real(2, 3, 4, 5))
        for a, b in ((0, -1), (1, 2), (0, 1), (-2, -1), (1, 1), (-4, 1))
    ] + [*singles(paddle.flatten, REALS[2], real(3)), (lambda x: paddle._C_ops.flatten(x, -2, -1), X)],
    "squeeze": [*ways(paddle.squeeze, (ONES,), (None, 0, 2, -1, 1, [0, 2], [-1, 0], [0, 1, -1])), (paddle.squeeze, X)],
    "unsqueeze": [
        *ways(paddle.unsqueeze, (X,), (0, 1, -1, -2, [0, 1], [0, 2], [2, 0], [-1, 0], [3, 1], [1, 1], [-1, -1])),
        (lambda x: x.unsqueeze(0), REALS[2]), (lambda x: x.unsqueeze(paddle.to_tensor([0, 2])), X),
    ],
    "expand": [
        *ways(paddle.expand, (real(3, 1, 4),), ([3, 2, 4], [5, 3, 2, 4], [-1, 2, -1], [5, -1, 2, -1])),
        *[(lambda x: x.expand([2, 3]), x) for x in (truth(3), whole(1), REALS[2])],
        (lambda x: x.expand([paddle.shape(x)[0], 5, 4]), real(3, 1, 4)),
    ],
    "tile": [
        *ways(paddle.tile, (real(2, 3),), ([2], [2, 3], [3, 2, 1])), (lambda x: x.tile([3]), REALS[2]),
        (lambda x: x.tile([2, 1]), truth(2, 3)),
    ],
    "transpose": [
        *ways(paddle.transpose, (X,), ([2, 0, 1], [1, 2, 0], [0, -1, 1])),
        *singles(lambda x: x.t(), real(2, 3), truth(3, 2), whole(2, 3)),
    ],
    "concat": [
        *ways(lambda x, y, a: paddle.concat([x, y, x], a), (X, Y), (0, 1, -1, -3)), (lambda x: paddle.concat([x]), X),
        (lambda x, y: paddle.concat([x, y], paddle.full([], 1, "int64")), real(2, 3, 4), real(2, 5, 4)),
        (lambda x, y: paddle.concat([x, y]), truth(2, 3), truth(1, 3)),
        (lambda x, y: paddle.concat([x, y], 1), whole(2, 3), whole(2, 1)),
    ],
    "stack": [
        *ways(lambda x, y, a: paddle.stack([x, y, y], a), (X, Y), (0, 1, 3, -1, -2)),
        (lambda x: paddle.stack([x, x]), truth(2)),
    ],
    "split": [
        *ways(lambda x, form: paddle.split(x, *form), (X,), (([1, 3], 2), ([1, -1], -1), ([-1, 2, 1], 2), ([1, 1], 0))),
        (lambda x: paddle.split(x, [2, 1], paddle.full([], 1, "int64"))[1], whole(2, 3)),
    ],
    "split_with_num": [
        *ways(lambda x, form: paddle.split(x, *form), (X,), ((2, 2), (3, 1), (2, -1), (3, -2))),
        (lambda x: paddle.chunk(x, 2)[1], truth(2, 3)),
    ],
    "unbind": [*ways(paddle.unbind, (X,), (0, 1, -1, -3)), (lambda x: paddle.unbind(x, 1)[1], whole(2, 3))],
    "slice": [
        *ways(lambda x, item: x[item], (X,), (
            0, -1, (ALL, 1), slice(1, None), (ALL, slice(None, -1)), (..., slice(1, 3)), (0, 1, 2), (-1, ALL, -1),
            (ALL, None, 1), (slice(1, 2), slice(0, 2), slice(-3, -1)), slice(-100, 100), (ALL, slice(-100, 2)),
        )),
        (lambda x: x[1], truth(3, 2)),
        (lambda x: paddle.slice(x, [0, 2], [-1, -3], [2, -1]), X), (lambda x: paddle.slice(x, [-1], [1], [3]), X),
        (lambda x: x[:, paddle.full([], 1, "int64")], X), (lambda x: x[:, : paddle.shape(x)[0]], X),
        (lambda x: x[:, 1], whole(3, 2)),
    ],
    "repeat_interleave": [
        *ways(lambda x, form: paddle.repeat_interleave(x, *form), (X,), ((2, 0), (3, 1), (2, -1), (2, None))),
        (lambda x: x.repeat_interleave(2, 1), whole(2, 3)),
    ],
    "gather": [
        *ways(paddle.gather, (X, ROWS), (0, 1, -1, -2)), (paddle.gather, X, np.array(1)),
        (paddle.gather, whole(3, 2), index(2, 0).astype(np.int32)),
        (lambda x, i: paddle.gather(x, i, paddle.full([], 2, "int64")), X, index(3, 0)),
    ],
    "gather_nd": [
        (paddle.gather_nd, X, index([1, 2], [0, 1], [1, 0])), (paddle.gather_nd, X, index([1], [0])),
        (lambda x, i: x[i], X, ROWS),
        (paddle.gather_nd, X, index(1, 2, 0)), (paddle.gather_nd, whole(3, 2), index([1, -1], [-2, 0])),
        (lambda x, i: x[i], truth(3, 2), ROWS),
    ],
    "index_select": [
        *ways(paddle.index_select, (X, ROWS), (0, 1, -1)), (paddle.index_select, whole(3, 2), ROWS.astype(np.int32)),
        (paddle.index_select, truth(3, 2), ROWS),
    ],
    "embedding": [
        (F.embedding, index([1, 0, 2], [2, 2, 0]), real(3, 4)), (F.embedding, ROWS.astype(np.int32), real(3, 4)),
        (F.embedding, np.array(1), real(3, 4)),
    ],
    "scatter": [
        (paddle.scatter, real(5, 3), index(3, 1), real(2, 3)), (paddle.scatter, real(5), index(3, 1), real(2)),
        (paddle.scatter, whole(5, 2), index(3, 1), whole(2, 2)),
        (lambda i, u: paddle.scatter(paddle.zeros([5, 3]), i, u, overwrite=False), index(3, 1, 3), real(3, 3)),
        (lambda i, u: paddle.scatter(paddle.zeros([5, 2], "int64"), i, u, overwrite=False),
         index(3, 1, 3), whole(3, 2)),
    ],
    "argsort": [
        *[(lambda x, a=a, d=d: paddle.argsort(x, a, d), X) for a in (0, 1, -1) for d in (False, True)],
        *[(lambda x, a=a, d=d: paddle.argsort(x, a, d, stable=True), whole(40, 50))
          for a in (0, -1) for d in (False, True)],
        *ways(lambda x, d: paddle.sort(x, 1, d), (X,), (False, True)),
    ],
    "argmax": [
        *[(lambda x, a=a, k=k: paddle.argmax(x, a, k), X) for a in (0, 1, -1, -2) for k in (False, True)],
        (lambda x: paddle.argmax(x, 1, dtype="int32"), X), (lambda x: paddle.argmax(x, -1), whole(3, 40)),
    ],
    "sum": [
        *reductions(paddle.sum, *WHOLES, truth(2, 3), REALS[3]),
        *ways(lambda x, kind: paddle.sum(x, 1, kind), (whole(2, 3),), ("int32", "float32")),
    ],
    "mean": reductions(paddle.mean, REALS[3]),
    "conv2d": [
        *convolutions(F.conv2d, 2),
        (lambda x, w, b: F.conv1d(x, w, b, stride=2, padding=[1, 2]), real(2, 4, 7), real(6, 4, 3), real(6)),
    ],
    "conv3d": convolutions(F.conv3d, 3),
    "depthwise_conv2d": [
        (lambda x, w, form=form: F.conv2d(x, w, groups=4, **form), IMAGE, real(channels, 1, 3, 2))
        for form in (dict(), dict(padding=[1, 0, 2, 1]), dict(stride=[2, 1], dilation=[1, 2])) for channels in (4, 8)
    ],
    "pad3d": [
        *[
            (lambda x, mode=mode, p=p, layout=layout: F.pad(x, p, mode, 0.7, layout), real(*shape))
            for mode in ("constant", "reflect", "replicate")
            for shape, p, layout in (
                ((2, 3, 4), [2, 1], "NCL"), ((2, 3, 4, 5), [1, 2, 3, 0], "NCHW"),
                ((2, 3, 4, 5, 6), [1, 2, 0, 3, 2, 1], "NCDHW"), ((2, 3, 4, 5, 6), [4, 0, 3, 1, 0, 2], "NCDHW"),
            )
        ],
        (lambda x: F.pad(x, [1, 2, 0, 1], value=2), whole(2, 3, 4, 5)),
        (lambda x: F.pad(x, [-1, 2, 0, 1]), real(2, 3, 4, 5)),
    ],
    "group_norm": norms(lambda x, w=None, b=None: F.group_norm(x, 2, 0.01, w, b), 6,
                        real(2, 6, 4, 5), real(2, 6, 4), real(2, 6, 2, 3, 4)),
    "layer_norm": [
        *norms(lambda x, w=None, b=None: F.layer_norm(x, [4], w, b, 0.001), 4, X, real(3, 4)),
        *norms(lambda x, w=None, b=None: F.layer_norm(x, [3, 4], w, b), 12, X),
    ],
    "pool2d": ways(F.avg_pool2d, (real(2, 3, 4, 6),), (2, [4, 3], [1, 2])),
    "nearest_interp": [
        *resizes("nearest"), (lambda x: F.interpolate(x, [3, 8, 9], data_format="NCDHW"), VIDEO),
        (lambda x: F.interpolate(x, scale_factor=[1, 2, 3], data_format="NCDHW"), VIDEO),
        (lambda x: F.interpolate(x, paddle.shape(x)[2:] * 2 - 1), IMAGE),
    ],
    "bilinear_interp": resizes("bilinear"),
    "full": ways(lambda x, kind: paddle.full([2, 3], 1, kind), (X,), KINDS),
    "full_like": ways(lambda x, kind: paddle.full_like(x, 1, kind), (X,), KINDS),
    "full_with_tensor": ways(lambda x, kind: paddle.full(paddle.shape(x)[1:], 1, kind), (X,), KINDS),
    "assign_value": ways(lambda x, kind: paddle.to_tensor([[1, 0], [2, 3], [0, 5]], kind), (X,), KINDS),
    "full_int_array": [(lambda x: paddle.unsqueeze(x, [0, 3]), X)],
    "arange": [
        (lambda x, form=form, kind=kind: paddle.arange(*form, dtype=kind), X)
        for form in ((5,), (2, 9, 2), (9, 2, -3), (0.5, 4)) for kind in ("int64", "int32", "float32", "float64")
    ] + [(lambda x: paddle.arange(paddle.shape(x)[2]), X)],
    "logspace": [(lambda x: x[0, 0, :1] * paddle.logspace(-1, 2, 5, base=3.0), X)],
    "shape": [(lambda x: paddle._C_ops.shape(x), X)],
    "shape64": singles(paddle.shape, X, real(3)),
}  # fmt: skip
# By operator, forms that none computes, for each reason.
REFUSED: dict[str, list[tuple[Any, ...]]] = {
    # OpenVINO's result has another type or shape, or it raises.
    "exp": singles(paddle.exp, np.abs(nonzero(3)), positive(3).astype(float)),
    "matmul": [(paddle.matmul, real(2, 1, 3, 4), real(5, 4, 6))],
    "add": [(paddle.add, truth(3), truth(3))],
    "logical_or": [(paddle.logical_or, X, Y)],
    # It has no such type.
    "cast": ways(lambda x, kind: x.cast(kind), (X,), ("float16", "bfloat16", "uint8", "int8", "int16")),
    # A shape or index is known only at run time.
    "reshape": [(paddle.reshape, X, index(4, 6))],
    "slice": [(lambda x, i: x[:, i], X, np.array(1)), (lambda x, i: x[:, :i], X, np.array(2))],
    "nearest_interp": [(lambda x, s: F.interpolate(x, s), IMAGE, index(6, 7))],
    # An attribute has a value that no entry knows.
    "embedding": ways(lambda i, w, p: F.embedding(i, w, p), (ROWS, real(3, 4)), (0, 1)),
    "argmax": [(paddle.argmax, X)],
    "bilinear_interp": [(lambda x: F.interpolate(x, [9, 11], mode="bilinear", align_corners=True), IMAGE)],
    "conv2d": [
        *ways(lambda x, w, p: F.conv2d(x, w, padding=p), (IMAGE, real(6, 4, 3, 2)), ("SAME", "VALID")),
        (lambda x, w: F.conv2d(x, w, data_format="NHWC"), IMAGE, real(5, 6, 3, 2)),
    ],
    "group_norm": [(lambda x: F.group_norm(x, 2, data_format="NHWC"), IMAGE)],
    # Its own entry refuses it.
    "dropout": [
        (lambda x: F.dropout(x, 0.3, training=False, mode="downscale_in_infer"), X), (lambda x: F.dropout(x, 0.3), X),
    ],
    "gather": [(paddle.gather, X, index([1], [0]))],
    "scatter": [
        (lambda x, i, u: paddle.scatter(x, i, u, overwrite=False), real(5, 3), index(3, 1), real(2, 3)),
        (lambda i, u: paddle.scatter(paddle.ones([5, 3]), i, u, overwrite=False), index(3, 1), real(2, 3)),
        (paddle.scatter, real(5, 3), index([3], [1]), real(2, 3)),
    ],
    "pad3d": [(lambda x: F.pad(x, [1, 2, 0, 1], "circular"), IMAGE)],
    "pool2d": [
        (lambda x: F.avg_pool2d(x, 2, stride=1), real(2, 3, 4, 6)),
        (lambda x: F.avg_pool2d(x, 2, padding=1), real(2, 3, 4, 6)),
        (lambda x: F.max_pool2d(x, 2), real(2, 3, 4, 6)),
        (lambda x: F.adaptive_avg_pool2d(x, [2, 3]), real(2, 3, 4, 6)),
        (lambda x: F.avg_pool2d(x, 2), IMAGE),
    ],
}  # fmt: skip


def _list(cases: dict[str, list[tuple[Any, ...]]]) -> list[Any]:
    return [
        pytest.param(name, function, inputs, id=f"{name}-{number}")
        for name, listed in cases.items()
        for number, (function, *inputs) in enumerate(listed)
    ]


def test_every_operator_has_cases() -> None:
    assert CASES.keys() == OPERATORS.keys()
    assert REFUSED.keys() <= OPERATORS.keys()


@pytest.mark.parametrize(("name", "function", "inputs"), _list(CASES))
def test_computes_what_paddle_does(name: str, function: Callable[..., Any], inputs: list[Array]) -> None:
    """Of inputs at run time, and of weights."""
    expected = expect(function, inputs)
    for held in (False, True):
        found, names = compute(function, inputs, held=held)
        assert name in names
        assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in expected]
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5 * (y.dtype.kind == "f"))


@pytest.mark.parametrize(("name", "function", "inputs"), _list(REFUSED))
def test_refuses_what_it_computes_otherwise(name: str, function: Callable[..., Any], inputs: list[Array]) -> None:
    expect(function, inputs)
    with pytest.raises(UncompilableError):
        compute(function, inputs, held=False)
