"""Bad input: exit code 2, one line on standard error that helps, nothing written and no model loaded."""

import shlex

import pytest

from ppdiffusers_tome.tools.generation import loading
from ppdiffusers_tome.tools.generation.models import find_model
from tools.cli.helpers import PROMPT

MODEL = find_model("photographs").folder

# A command line, and a part of the sentence that must come.
CASES = f"""
 | no command was given; the commands are compare, doctor
generte | invalid choice: 'generte' (choose from
generate --promt=x | '--promt=x' is not an argument of generate; did you mean --prompt?
generate --prompt x --no-merge-atn | is not an argument of generate; did you mean --merge-attn?
generate --prompt x --method tood | did you mean todo?
generate | there is no prompt; give one with --prompt 'a photo of an astronaut'
generate --model dit | there is no prompt; give one with --prompt 'astronaut'
generate --prompt a\udcd2 | --prompt 'a\\udcd2' must be text
generate --prompt x --negative-prompt \udcd2 | --negative-prompt '\\udcd2' must be text
generate --prompt x --height 100 | --height 100 must be a multiple of 8
generate --prompt x --guidance-scale nan | --guidance-scale nan must be a finite number
generate --prompt x --ratio half | --ratio 'half' must be a number, such as 0.5; presets and files are given by --config
generate --prompt x --ratio 0.8 | --ratio 0.8 must be at least 0 and below 0.75 for a 2x2 stride
generate --prompt x --tome-seed 3 --no-rand | --tome-seed 3 has no effect with use_rand=False
generate --prompt x --cache 0,1,3 | --cache '0,1,3' must be the fraction of steps to skip, 0 <= cache < 1; got str
generate --prompt x --config balance | did you mean balanced?
generate --prompt x --scheduler DDIM | --scheduler: invalid choice: 'DDIM' (choose from
generate --prompt x --ratio balanced | --ratio 'balanced' must be a number, such as 0.5; presets and files are given
generate --prompt x --size 512 | '--size' is not an argument of generate; see ppdiffusers-tome generate --help
generate --prompt x --config balanced --ratio 0.5 | --ratio 0.5 and --config balanced both hold the ratio; give one
visualize --compile | --compile has no effect here: merging is recorded in Paddle's own layers; omit it
generate --prompt x --xformers --compile | --compile: not allowed with argument --xformers
generate --compile half | --compile: invalid choice: 'half' (choose from 'auto', 'float32', 'bfloat16', 'int8')
generate --prompt x --model '' | --model has no model_index.json
generate --prompt x --config '' | cannot be read as settings
generate --prompt x --model ./nowhere | --model ./nowhere does not exist; give a pipeline's folder
generate --prompt x --model controlnet | --model controlnet has no model_index.json
generate --prompt x --model photograph | does not exist; give a pipeline's folder, a hub name or a small model of exam
generate --prompt x --controlnet {MODEL} --image photo.png | has no config.json
generate --prompt x --controlnet {MODEL}/unet --image photo.png | holds a UNet2DConditionModel
generate --prompt x --controlnet controlnet | --controlnet needs the edges of a photo
generate --prompt x --image {__file__} | cannot be read as an image; give a PNG or JPEG file
generate --prompt x --model some/model --image photo.png | --image needs a ControlNet that fits
generate --prompt x --output x.png | --output x.png names a file, and is to be a folder; give one such as outputs
generate --prompt x --output {__file__} | names a file, and is to be a folder
generate --prompt x --output /proc/nowhere | /proc/nowhere cannot be written
generate --prompts nowhere.txt | nowhere.txt cannot be read (No such file or directory); give a text with
doctor --model photographs | '--model' is not an argument of doctor
generate --prompts prompts.txt --controlnet-scale 2 | --controlnet-scale needs the edges of a photo
compare --ratios 2 | --ratios 2 must be at least 0 and below 0.75
compare --ratios a.json | --ratios 'a.json' must be a number, such as 0.5; presets and files are given by --configs
compare --ratio 2 | '--ratio' is not an argument of compare; did you mean --ratios?
compare --ratios | nothing is to be compared with the unmerged pipeline
compare --configs nowhere.json | nowhere.json cannot be read as settings
compare --configs balanced --reuse-steps 2 | --reuse-steps 2 has no effect with
compare --seeds -1 | --seeds -1 must be from 0 to 2**62
compare --prompts /dev/null | --prompts /dev/null holds no prompt
compare --prompts /proc/self/exe | --prompts /proc/self/exe cannot be read (it is not text in UTF-8); give a text
compare --output taken | compare.md exists already; choose another --output, or replace it with --overwrite
generate --prompt x --output taken | /0001-x.png is there and differs in its prompt
tune --target-psnr -3 | --target-psnr -3 must be a number of dB above 0, at most 100, such as 30
tune --configs nowhere.json | nowhere.json cannot be read as settings
visualize --ratio 0 | ratio 0 makes no groups of similar tokens
visualize --config balanced | method todo) makes no groups of similar tokens, so there is nothing to show; give --method
visualize --prompt a --prompt b | 2 prompts were given
"""


@pytest.mark.parametrize("case", [*filter(None, CASES.splitlines())])
def test_bad_input_is_refused_in_one_line(case, get_error, tmp_path, photo, monkeypatch):
    monkeypatch.setattr(loading, "load_pipeline", lambda *_, **__: pytest.fail("work was started"))
    (tmp_path / "taken").mkdir()
    taken = [tmp_path / "taken" / name for name in ("compare.md", "0001-x.png")]
    for path in taken:
        path.write_text("mine")
    (tmp_path / "prompts.txt").write_text(PROMPT)
    line, sentence = case.split(" | ")
    assert sentence in get_error(*shlex.split(line))
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {*taken, photo, tmp_path / "prompts.txt"}
    assert [path.read_text() for path in taken] == ["mine"] * 2


@pytest.mark.parametrize("arguments", [[], ["--model", "photographs"]])
def test_without_a_clone_a_model_is_asked_for(arguments, get_error, tmp_path, monkeypatch):
    monkeypatch.setattr("ppdiffusers_tome.__file__", str(tmp_path / "ppdiffusers_tome" / "__init__.py"))
    assert "or a small model of examples/models in a clone of" in get_error("generate", "--prompt", "x", *arguments)
