"""The kinds of ``Override``: of denoisers, blocks, merge points and layers in attention."""
