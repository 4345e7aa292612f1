"""Loggers: where the numbers of a search go while it runs, one file each."""
