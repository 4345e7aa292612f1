"""Records and every other file of results: where they are, how they are read and written."""
