"""ToMe (Token Merging for Fast Stable Diffusion, Bolya & Hoffman 2023): a group of similar tokens becomes its mean."""

from __future__ import annotations

from ppdiffusers_tome.merging.methods.method import MEAN, Method

METHOD = Method(about="similar tokens become their mean; afterwards all get its result", combine=lambda depth: MEAN)
