"""The verdict: which claims the tables support, in words."""
