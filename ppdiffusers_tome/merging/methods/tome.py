"""ToMe (Token Merging for Fast Stable Diffusion, Bolya & Hoffman 2023): a group of like tokens becomes its mean."""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import MEAN, Method

METHOD = Method(about="like tokens become their mean, and all get its result", combine=lambda depth: MEAN)
