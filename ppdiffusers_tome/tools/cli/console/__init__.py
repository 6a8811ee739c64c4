"""The terminal: the parser of command lines, output, tables, Ctrl-C and the settings of the process."""
