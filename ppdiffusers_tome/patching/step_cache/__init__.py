"""The cache over steps: some calls of a denoiser skip most layers.

Token merging does not import it.

Merging makes a call cheaper; this makes some calls skip most of their layers. A skipped step adds what those layers
added in the last computed step, moved along a share of the slope between the last two (TaylorSeer, arXiv 2503.06923,
has the whole slope).
"""
