"""Statistics: which differences between methods are real."""
