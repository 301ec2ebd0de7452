"""The options of the commands, each written once: same name, help and default everywhere.

A file per subject: the options themselves, and the group that a command takes them as.
"""
