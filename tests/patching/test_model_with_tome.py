"""ToMe on a model: files, parts, and what is left when it is gone; models that ppdiffusers' own port patched before."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle
import pytest

import tiny
from patching.port import apply_port
from ppdiffusers_tome import ToMeTypeError, ToMeValueError, apply_tome, remove_tome
from ppdiffusers_tome.patching.layers import find_layer
from zoo import unet_spatio_temporal


def test_pickling_is_refused_in_words() -> None:
    unet = tiny.unet()
    try:
        pickle.dumps(unet)
    except Exception as error:  # what it raises differs by release
        pytest.skip(f"a plain ppdiffusers model cannot be pickled on Paddle {paddle.__version__}: {error}")
    merged = tiny.run_unet(apply_tome(unet, **tiny.MERGE_ALL))
    with pytest.raises(ToMeTypeError, match=r"cannot be pickled; remove_tome first, .*config.save\('tome.json'\)"):
        pickle.dumps(unet)
    assert np.array_equal(tiny.run_unet(unet), merged)


@pytest.mark.parametrize("build", [tiny.unet, unet_spatio_temporal.SPECIMEN.build], ids=["unet", "video"])
@pytest.mark.parametrize("path", ["down_blocks", "down_blocks.0", "down_blocks.0.attentions.0", "mid_block"])
def test_a_part_of_a_model_is_refused(path: str, build: Callable[[], paddle.nn.Layer]) -> None:
    """Stable Video Diffusion's embed numbers of frames with the class of layer that embeds timesteps elsewhere."""
    model = apply_tome(build(), **tiny.MERGE_ALL)
    before, part = tiny.snapshot(model), find_layer(model, path)
    for change in (lambda: apply_tome(part, 0.3), lambda: remove_tome(part)):
        with pytest.raises(ToMeValueError, match=r"is a part of a model, .*give the model.* max_downsample"):
            change()
    assert tiny.snapshot(model) == before


def test_weights_of_a_model_with_tome_are_saved_and_loaded(tmp_path: Path) -> None:
    unet, plain = tiny.unet(), tiny.run_unet(tiny.unet())
    weights = {name: value.clone() for name, value in unet.state_dict().items()}
    merged = tiny.run_unet(apply_tome(unet, **tiny.MERGE_ALL))
    unet.save_pretrained(str(tmp_path))
    loaded = type(unet).from_pretrained(str(tmp_path))
    loaded.eval()
    assert np.array_equal(tiny.run_unet(loaded), plain)
    assert np.array_equal(tiny.run_unet(apply_tome(loaded, **tiny.MERGE_ALL)), merged)
    for parameter in unet.parameters():
        parameter.set_value(paddle.zeros_like(parameter))
    unet.set_state_dict(weights)
    assert np.array_equal(tiny.run_unet(unet), merged)


def test_ours_after_the_port_equals_ours_alone() -> None:
    expected = tiny.run_unet(apply_tome(tiny.unet(), 0.4, merge_mlp=True))
    unet = apply_port(tiny.unet(), ratio=0.6, max_downsample=2)
    tiny.run_unet(unet)
    assert np.array_equal(tiny.run_unet(apply_tome(unet, 0.4, merge_mlp=True)), expected)


def test_remove_leaves_nothing_of_the_port() -> None:
    """It marks the text encoder too."""
    pipe = tiny.pipeline()
    layers = [pipe.unet, pipe.vae, pipe.text_encoder]
    plain, before = tiny.run_unet(pipe.unet), [tiny.snapshot(layer) for layer in layers]
    for remove in (pipe.remove_tome, lambda: pipe.apply_tome(0.5).remove_tome()):
        apply_port(pipe, ratio=0.6, max_downsample=2)
        assert "_tome_info" in vars(pipe.text_encoder)
        assert np.abs(tiny.run_unet(pipe.unet) - plain).max() > 1e-3
        assert remove() is pipe
        assert [tiny.snapshot(layer) for layer in layers] == before
    assert np.array_equal(tiny.run_unet(pipe.unet), plain)


def test_removing_it_from_a_copy_leaves_the_first_one_as_it_is() -> None:
    unet = apply_port(tiny.unet(), ratio=0.6, max_downsample=2, use_rand=False)
    ported, before = tiny.run_unet(unet), tiny.snapshot(unet)
    other = remove_tome(copy.deepcopy(unet))
    assert tiny.snapshot(unet) == before
    assert np.array_equal(tiny.run_unet(other), tiny.run_unet(tiny.unet()))
    assert np.array_equal(tiny.run_unet(unet), ported)
