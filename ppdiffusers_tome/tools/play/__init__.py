"""A page that compares an image without and with token merging.

``studio`` checks what a user enters and generates, ``html`` renders the results, ``i18n`` has the words in English and
Chinese, ``page`` is the layout in Gradio, ``server`` guards what is served.
"""
