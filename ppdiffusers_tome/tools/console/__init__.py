"""The terminal: parser, output, tables and the settings of the process."""
