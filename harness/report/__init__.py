"""The page that people look at, single figures for papers, and embeddings for people's own tools.

Made from records alone, without torch; pictures and maps alone open the test classes again.
"""
