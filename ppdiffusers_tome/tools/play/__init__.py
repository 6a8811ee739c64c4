"""A page in the browser that compares an image without and with token merging, under one slider.

``requests`` checks what a user enters, ``studio`` generates, ``html`` renders the results, ``i18n`` has the words in
English and Chinese, ``page`` is the layout in Gradio, ``server`` guards what is served.
"""
