"""The cache over steps: some calls of a denoiser skip most layers.

A skipped step adds what those layers added in the last computed step, moved along a share of the slope between the last
two (all of it in TaylorSeer, arXiv 2503.06923). Neither ``overrides`` nor ``state`` imports this; ``attach`` does.
"""
