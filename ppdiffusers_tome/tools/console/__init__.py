"""The terminal: parser, output, tables, Ctrl-C and the settings of the process."""
