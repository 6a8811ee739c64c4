"""What a configuration of token merging gains and what it costs: seconds, memory and likeness, picture by picture.

``measuring`` measures one configuration on one picture and knows nothing of the rest: ``configurations`` says what is
put on the pipeline, ``block_clock`` times the blocks that merge. ``turns`` and ``ledger`` go through many pictures and
remember them; ``summary``, ``frontier`` and ``plot`` make a table and a picture of them, ``features`` scores that need
a network.
"""
