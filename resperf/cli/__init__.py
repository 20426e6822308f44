"""Command line: thin commands over the package's parts."""
