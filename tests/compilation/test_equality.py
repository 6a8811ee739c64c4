"""Programs compute what Paddle does, for every family of models that can be compiled, and whole images."""

import copy
from typing import Any

import numpy as np
import paddle
import ppdiffusers
import pytest
from ppdiffusers.models.unet_2d_condition import UNet2DConditionOutput

import tiny
from compilation.comparison import Counted, check_same, difference, needs_openvino, programs_alone
from compilation.programs import FAMILIES, USUAL, build_pair, compile_small_unet, list_families, list_programs
from patching.contract import contract_of
from ppdiffusers_tome import apply_tome, compile_cpu
from ppdiffusers_tome.compilation.contents import Contents
from ppdiffusers_tome.compilation.model_call import StepValues, make_call
from ppdiffusers_tome.compilation.precision import keep_precise
from ppdiffusers_tome.compilation.trace import trace_call
from ppdiffusers_tome.machine import has_precision
from ppdiffusers_tome.patching.attach import list_attached_blocks
from ppdiffusers_tome.patching.state.denoiser_call import DenoiserCall
from zoo import Specimen
from zoo.specimen import keep_random_state

pytestmark = needs_openvino

METHODS: dict[str, dict[str, Any]] = {
    "half": dict(ratio=0.5),
    "balanced": dict(ratio="balanced"),
    "keys": dict(ratio=0.5, method="keys"),
    "todo": dict(ratio=0.5, method="todo"),
    "tiles": dict(ratio=0.6, tile=8),
    "all": tiny.MERGE_ALL,
}


@pytest.mark.parametrize("specimen", list_families(USUAL))
@paddle.no_grad()
def test_families_that_compile(specimen: Specimen) -> None:
    with keep_random_state():
        plain, model = build_pair(specimen)
        compile_cpu(model, "float32")
        # The second timestep has the program of the first.
        for timestep in (900, 500):
            check_same(model, plain, lambda each, **given: specimen.run(each, **given).numpy(), timestep=timestep)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in ("half", "keys") else pytest.mark.sweep) for each in METHODS]
)
def test_every_method_draws_the_same_destinations_at_every_timestep(name: str) -> None:
    plain = apply_tome(tiny.small_unet(), **METHODS[name])
    model = compile_cpu(copy.deepcopy(plain), "float32")
    given = dict(batch=1, height=64, width=64)
    unmerged = tiny.run_unet(tiny.small_unet(), **given)
    for timestep in (999, 701.5, 41, 0.5):  # those of most samplers are no whole numbers
        found = check_same(model, plain, timestep=paddle.to_tensor([timestep], dtype="float32"), **given)
    assert difference(found, unmerged) > 1e-3


@pytest.mark.skipif(not has_precision("bfloat16"), reason="needs a processor that computes in bfloat16")
@pytest.mark.parametrize(("ratio", "bound"), [("balanced", 0.02), (0.5, 0.2)])  # rounded tokens match others
@paddle.no_grad()
def test_bfloat16_draws_the_same_destinations(ratio: Any, bound: float) -> None:
    """Other destinations at timestep 21.3 make a difference of 0.54."""
    plain = ppdiffusers.UNet2DConditionModel.from_pretrained(str(tiny.EMOJI), subfolder="unet").eval()
    apply_tome(plain, ratio)
    model = compile_cpu(copy.deepcopy(plain), "bfloat16")
    noise, text = tiny.latent(2, 32, 32), tiny.array((2, 7, plain.config.cross_attention_dim), seed=2)
    for timestep in (984.0, 981.0, 21.3):
        for given in (paddle.to_tensor(timestep), paddle.to_tensor([timestep] * 2)):
            with programs_alone():
                found, expected = (each(noise, given, text)[0].numpy() for each in (model, plain))
            assert 1e-4 < difference(found, expected) < bound


def test_bfloat16_keeps_angles_indices_and_similarities_in_float32() -> None:
    given = (tiny.latent(), paddle.to_tensor([500.5] * 2), tiny.text())
    unet = apply_tome(tiny.small_unet(), 0.5)
    _, _, override = list_attached_blocks(unet)[0]
    call = DenoiserCall(override.state, unet)
    program = trace_call(make_call(unet, Contents(unet), "bfloat16", given, {}, StepValues(call))).openvino_model
    keep_precise(program)
    [_, *kept] = [each.input_value(0).get_node() for each in program.get_results()]
    assert {node.get_type_name() for node in kept} == {"Sin", "Cos", "Convert"}
    products = [node for node in program.get_ops() if node.get_type_name() == "MatMul"]
    targets = [[each.get_node().get_type_name() for each in node.output(0).get_target_inputs()] for node in products]
    assert [bool(dict(node.get_rt_info())) for node in products] == ["TopK" in each for each in targets]
    assert any("TopK" in each for each in targets)


def test_a_timestep_that_is_a_number() -> None:
    """Models cut off the fraction of a number. Whole ones have one program, which no further number makes again."""
    model, plain = compile_small_unet(), tiny.small_unet()
    for timestep in (999, 41, 41.0, 0, 0.5, 701.5):
        check_same(model, plain, timestep=timestep)
    assert len(list_programs(model)) == 3


@pytest.mark.parametrize("guess_mode", [False, True])
def test_the_scale_of_a_controlnet_is_an_input(guess_mode: bool) -> None:
    model, plain = compile_cpu(tiny.controlnet(levels=1), "float32"), tiny.controlnet(levels=1)

    @paddle.no_grad()
    def run(model: Any, scale: float) -> np.ndarray:
        given = dict(conditioning_scale=scale, guess_mode=guess_mode, return_dict=False)
        down, middle = model(tiny.latent(), 500, tiny.text(), tiny.array((2, 3, 32, 32)), **given)
        return np.concatenate([x.numpy().ravel() for x in (*down, middle)])

    found = [check_same(model, plain, run, scale=scale) for scale in (1.0, 0.3, 1.7)]
    assert difference(found[1], found[0]) > 0.1
    assert len(list_programs(model)) == 1


def test_the_output_is_of_paddles_type() -> None:
    model = compile_small_unet()
    given = (tiny.latent(), 500, tiny.text())
    with paddle.no_grad(), programs_alone():
        found = [model(*given, return_dict=each) for each in (True, False, True)]
    assert [type(each) for each in found] == [UNet2DConditionOutput, tuple, UNet2DConditionOutput]
    first = found[0].sample.numpy()
    tiny.run_unet(model, timestep=3)
    assert (found[0].sample.numpy() == first).all(), "a later call wrote into an earlier output"


def test_another_size_batch_and_length_of_the_text() -> None:
    model, plain = compile_cpu(apply_tome(tiny.small_unet(), 0.5), "float32"), apply_tome(tiny.small_unet(), 0.5)
    for given in (dict(), dict(batch=1), dict(height=12, width=20), dict()):
        check_same(model, plain, **given)
    view = tiny.latent(4)[1:3].transpose([0, 1, 3, 2])  # not contiguous
    with paddle.no_grad():
        check_same(model, plain, lambda each: each(view, 500, tiny.text().tile([1, 2, 1])).sample.numpy())
    # Sides that no level halves evenly: another layer's shape is the size of what is enlarged.
    model, plain = (apply_tome(tiny.unet(levels=2), 0.5) for _ in range(2))
    check_same(compile_cpu(model, "float32"), plain, height=13, width=10)


def test_a_whole_image_with_controlnet(monkeypatch: pytest.MonkeyPatch) -> None:
    """80 dB or more, with all settings that README advises."""
    controlnet = ppdiffusers.ControlNetModel.from_pretrained(str(tiny.CONTROLNET))
    pipe = tiny.load_photographs(ppdiffusers.StableDiffusionControlNetPipeline, controlnet=controlnet)
    apply_tome(pipe, "balanced", cache=0.2)

    def draw() -> np.ndarray:
        given = dict(latents=tiny.array((1, 4, 16, 16), seed=1), height=128, width=128, num_inference_steps=10)
        image = tiny.array((1, 3, 128, 128), seed=3).clip(0, 1)
        return pipe("a street", image=image, **given, guidance_scale=1.5, output_type="np").images

    expected, counted = draw(), Counted(monkeypatch)
    compile_cpu(pipe, "float32")
    with programs_alone():
        assert counted.during(draw) == 4  # computed and skipped steps of the ControlNet and the UNet, once compared
        images = [draw()]
        assert counted.during(lambda: images.append(draw())) == 0
    assert all(-10 * np.log10(np.mean((image - expected) ** 2)) >= 80 for image in images)


def test_encoder_and_decoder_of_a_vae() -> None:
    vae, plain = compile_cpu(tiny.vae(), "float32"), tiny.vae()
    assert "forward" not in vars(vae)
    with paddle.no_grad():
        check_same(vae, plain, lambda each: each.decode(tiny.latent()).sample.numpy())
        check_same(vae, plain, lambda each: each.encode(tiny.array((1, 3, 32, 32))).latent_dist.mean.numpy())
    assert all(len(list_programs(part)) == 1 for part in (vae.decoder, vae.encoder))


def build_compiled_contract(specimen: Specimen) -> Any:
    """Return the tests of a specimen, compiled."""
    tests = contract_of(specimen)
    tests.build = staticmethod(lambda: compile_cpu(specimen.build(), "float32"))
    tests.pytestmark = [*needs_openvino, *([] if specimen.name == "unet" else [pytest.mark.sweep])]
    return tests


for _specimen in FAMILIES:
    if _specimen.reason is None:
        globals()[f"TestCompiled{_specimen.name.title()}"] = build_compiled_contract(_specimen)
