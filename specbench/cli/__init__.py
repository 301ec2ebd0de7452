"""The command line: one thin module per command; heavy imports happen inside the commands."""
