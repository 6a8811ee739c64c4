"""A page in the browser: the same picture without and with token merging, under one slider.

``asking`` (what a person asked for, checked), ``photos`` (what a person hands over), ``studio`` (what is drawn and
measured), ``jobs`` (one drawing at a time, the others in line), ``desks`` (what the page remembers of each person),
``words`` (English and Chinese) and ``shown`` (HTML) know no gradio; ``page`` is the layout and ``serving`` the server.
"""
