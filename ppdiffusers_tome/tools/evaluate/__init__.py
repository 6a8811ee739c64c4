"""What a configuration of token merging gains and what it costs: seconds, memory and similarity, picture by picture.

``measuring`` measures one configuration on one picture and knows nothing of the rest: ``configurations`` says what is
applied to the pipeline, ``block_clock`` times the blocks that merge. ``running``, ``ledger`` and ``picture_store`` go
through many ``samples`` and remember them; ``comparison`` does the same for a few, side by side; ``summary``,
``frontier`` and ``plot`` make a table and a plot of them, ``features`` and ``scores`` what needs a network.
"""
