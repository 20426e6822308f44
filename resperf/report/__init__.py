"""Reports: results as text for people and as JSON for machines. Nothing here prints.

Networks, devices and comparisons with measurements have separate modules, so that a command loads
only what it shows.
"""
