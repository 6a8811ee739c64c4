"""All that the page says, whatever the language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ppdiffusers_tome.tools.play.requests import RefusedError


@dataclass(frozen=True)
class Words:
    """What the page says in one language; in braces what is filled in.

    Attributes:
        fields: names of what a person can enter, as refusals call them.
        presets: names of presets, where they are other than the package's.
        about, memories: what methods do, by name, and what is measured as memory, by the package's own English, which
            is shown where they lack something.
    """

    code: str
    name: str
    title: str
    about_page: str
    model_line: str

    prompt: str
    class_label: str
    class_hint: str
    negative_prompt: str
    merging: str
    own: str
    method: str
    ratio: str
    ratio_hint: str
    picture: str
    seed: str
    width: str
    height: str
    fixed_size: str
    steps: str
    guidance: str
    with_map: str

    guide: str
    choose: str
    choose_hint: str
    photo_kept: str
    remove: str
    photo: str
    edges: str
    low: str
    high: str
    strength: str

    draw: str
    cancel: str
    first: str
    first_steps: str
    waiting: str
    warming_up: str
    drawing_unmerged: str
    drawing_merged: str
    drawing_map: str
    step: str
    done: str
    cancelled: str

    unmerged: str
    merged: str
    slide: str
    speed_up: str
    psnr: str
    ssim: str
    identical: str
    seconds: str
    memory: str
    not_measured: str
    compared: str
    remembered: str
    settings_line: str

    map_title: str
    map_explained: str
    map_none: str
    map_step: str
    map_often: str
    map_slide: str
    merged_away: str
    merged_away_often: str
    ran_unmerged: str
    level: str

    odd_too_long: str
    odd_not_understood: str
    odd_other_size: str
    odd_no_edges: str

    refused_no_prompt: str
    refused_no_class: str
    refused_long_prompt: str
    refused_unknown_class: str
    refused_whole_number: str
    refused_size: str
    refused_scale: str
    refused_settings: str
    refused_nothing_merges: str
    refused_thresholds: str
    refused_memory: str
    refused_large_file: str
    refused_no_picture: str
    refused_lost_photo: str
    refused_large_picture: str
    refused_small_picture: str
    refused_full: str
    refused_failed: str
    refused_out_of_memory: str
    refused_broken: str

    fields: Mapping[str, str]
    presets: Mapping[str, str]
    about: Mapping[str, str]
    memories: Mapping[str, str]

    def refusal(self, refused: RefusedError) -> str:
        """Why something cannot be done."""
        values = {name: self.fields[str(value)] if name == "field" else value for name, value in refused.values.items()}
        return str(getattr(self, f"refused_{refused.reason}")).format(**values)
