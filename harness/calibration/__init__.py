"""Known answers through the whole pipeline: what does this budget find, and what does it invent?"""
